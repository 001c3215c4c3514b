"""Empties what is done from the view of a queue: rows, then deleted marks with a proof; moves browseStart and contentStart forward."""

SMALL_FIRST = True
"""Small work is done without Spark: all that it asks of Spark is `run_on_keys`."""
