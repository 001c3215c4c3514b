"""Deletes blobs without a reference.

One run records candidates. A later run that scans again and still finds no reference deletes them.
It keeps a copy of each for a week.
"""

NEEDS_QUEUE = False
