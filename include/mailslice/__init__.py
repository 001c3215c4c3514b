"""mailslice: worker library and maintenance platform for a distributed mail queue of RabbitMQ,
Cassandra and S3.

Wire-compatible, both ways, with Apache James' distributed mail queue. Rooms and the arrows between
them: docs/architecture.md.
"""

__version__ = "0.1.0"
