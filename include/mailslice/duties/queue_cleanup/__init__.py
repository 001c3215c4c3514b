"""Empties what is done from a queue's view: rows, and marks with a proof; moves both starts on."""

SMALL_FIRST = True
"""Small work is done without Spark: all that it asks of Spark is `run_on_keys`."""
