"""What the worker asks of the stores, for all mails together."""
