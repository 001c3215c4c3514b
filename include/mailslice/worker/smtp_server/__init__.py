"""The SMTP server that takes mails into the queue."""
