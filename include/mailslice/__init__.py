"""mailslice: worker library and maintenance platform of a mail queue on RabbitMQ, Cassandra, S3.

Wire-compatible, both ways, with Apache James' distributed mail queue. See docs/architecture.md.
"""

__version__ = "0.2.0.dev0"
