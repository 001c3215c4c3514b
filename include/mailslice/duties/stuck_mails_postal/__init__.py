"""Recovers messages in Postal's queue whose worker died or hangs, on Postal's own MariaDB."""

NEEDS_QUEUE = False
