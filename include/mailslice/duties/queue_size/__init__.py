"""Measures a queue: size, age, slices, recipient domains by age, dead letters.

Publishes JSON, Prometheus text and a plot. Changes no mail.
"""

SMALL_FIRST = True
"""Small work runs without Spark: the duty needs only `run_on_keys` of it."""
