"""RabbitMQ: connections, James' topology, the management API, publisher and consumer."""
