"""Deletes blobs without a reference.

A scan records candidates. A later full scan that still finds no reference deletes them, and keeps
a copy of each for a week.
"""

NEEDS_QUEUE = False
