"""Puts mails that an audit proved lost back into RabbitMQ, each proved again and published once."""
