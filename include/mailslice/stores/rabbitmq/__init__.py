"""RabbitMQ: addresses and connections, James' topology, the management API, and the asyncio
publisher and consumer of the hot path.
"""
