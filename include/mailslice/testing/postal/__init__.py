"""A Postal to test against: its databases on a real MariaDB, its rows, and a player of its workers.

Its tables equal those of Postal 3.3 and 2.3 in effect. The text is our own. It starts no server.
"""
