"""Measures a queue: size, age, slices, recipient domains by age, dead letters.

Publishes JSON, Prometheus text and a plot. Changes no mail.
"""

SMALL_FIRST = True
"""Small work is done without Spark: all that it asks of Spark is `run_on_keys`."""
