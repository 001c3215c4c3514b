"""Benchmarks: tools that the product does not import; the command line mounts them where they are installed."""
