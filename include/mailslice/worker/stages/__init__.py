"""How far a mail has come, for handlers that must not do a step twice."""
