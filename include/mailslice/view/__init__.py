"""What the view in Cassandra says: its configuration, who shares it, which rows are live."""
