"""MariaDB: Postal's databases, and mailslice's own tables where there is no Cassandra."""
