"""Deletes dead rows and proved deleted marks from a queue's view, and raises both starts."""

SMALL_FIRST = True
"""Small work runs without Spark: `run_on_keys` is all that the duty needs of Spark."""
