"""Puts mails that an audit proved lost back into RabbitMQ, under their own enqueue ids, each proved again and published once."""
