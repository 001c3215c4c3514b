"""Spark for duties: the session of this process, and slices of the view read by key, in Python workers with the Cassandra driver. Knows no duty."""
