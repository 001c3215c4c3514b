"""Empties a queue's view of what is done: rows, and marks with a proof; moves both starts forward."""

SMALL_FIRST = True
"""Small work is done without Spark: all that it asks of Spark is `run_on_keys`."""
