"""Gives the disk back that deleted rows and marks still hold: flush and garbagecollect, one node of Cassandra after the other, by the operator's command."""

NEEDS_QUEUE = False
