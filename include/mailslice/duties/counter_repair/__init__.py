"""Counts the messages of every mailbox, corrects wrong counters, lists differing message rows."""

NEEDS_QUEUE = False
