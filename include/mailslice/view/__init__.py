"""Reads the queue view in Cassandra: its configuration, who shares it, which rows are live."""
