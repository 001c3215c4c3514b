"""Benchmarks, which the product never imports. `mailslice bench` exists only where installed."""
