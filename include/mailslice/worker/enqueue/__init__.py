"""Mails on their way into the queue: now, later, and reports of failure."""
