"""Frees the disk that deleted rows and marks still use.

Runs flush and garbagecollect by the operator's command, on one node of Cassandra at a time.
"""

NEEDS_QUEUE = False
