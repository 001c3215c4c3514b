"""Counts the messages of every mailbox and corrects counters that drifted.

Lists rows in which James' two message tables differ.
"""

NEEDS_QUEUE = False
