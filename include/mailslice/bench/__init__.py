"""Benchmarks, which the product does not import. `mailslice bench` exists where installed."""
