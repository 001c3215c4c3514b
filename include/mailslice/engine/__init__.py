"""Spark for duties: the session of this process, and scans of the view in Python workers.

Workers read slices by key with the Cassandra driver. Nothing here knows a duty.
"""
