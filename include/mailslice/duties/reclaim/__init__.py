"""Frees the disk space that deleted rows and marks still use.

Runs `nodetool flush` and `garbagecollect` by the operator's command, on one node at a time.
"""

NEEDS_QUEUE = False
