"""Benchmarks: tools beside the product, which `mailslice bench` has where they are installed."""
