"""A Postal to test against: its databases on a real MariaDB, its rows, and a player of its workers.

The tables are Postal's 3.3 and 2.3 in effect. The text is our own. Nothing here starts a server.
"""
