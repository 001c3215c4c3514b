"""Counts the messages of every mailbox, corrects counters that drifted and stand still, and lists rows in which James' two tables differ."""

NEEDS_QUEUE = False
