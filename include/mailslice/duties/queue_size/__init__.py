"""Measures a queue: size, age, slices, recipient domains by age, dead letters; publishes JSON, Prometheus text and a plot. Changes no mail."""
