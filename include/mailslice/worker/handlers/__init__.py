"""Handlers that ship: relay to an SMTP server, and store into a Maildir."""
