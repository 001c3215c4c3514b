"""Mails on their way out of the queue, from the broker's delivery to the last settlement."""
