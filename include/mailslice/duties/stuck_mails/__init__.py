"""Finds mails whose holder lives and hangs: sets them aside, or recovers them by their stage; discards what dead workers left in the records."""
