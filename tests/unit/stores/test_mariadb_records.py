"""How many statements a record of MariaDB takes: each is a transaction with a flush to the disk."""

from types import SimpleNamespace

from mailslice.stores.mariadb.failures import AlreadyThere
from mailslice.stores.mariadb.own import MariaDbRecords
from mailslice.stores.own.locks import LOCKS


class Database:
    """Holds one row of the table of locks, alive or expired, or none."""

    url = SimpleNamespace(database="mailslice")

    def __init__(self, owner=None, *, is_alive=True):
        self.row, self.is_alive, self.verbs = owner, is_alive, []

    def execute(self, sql, params=()):
        self.verbs.append(sql.split()[0])
        if sql.startswith("INSERT"):
            if self.row is not None:
                raise AlreadyThere
            self.row, self.is_alive = params[1], True
        elif not self.is_alive:
            self.row = None
        return 1

    def rows(self, sql, _params=()):
        self.verbs.append(sql.split()[0])
        return [("a lock", self.row)] if self.row is not None and self.is_alive else []


def added(database):
    return MariaDbRecords(database, LOCKS).add({"name": "a lock", "owner": "new"})


def test_a_new_row_takes_one_write():
    database = Database()
    assert added(database) is None
    assert (database.row, database.verbs) == ("new", ["INSERT"])


def test_a_row_that_is_there_is_returned():
    database = Database("other")
    assert added(database) == {"name": "a lock", "owner": "other"}
    assert (database.row, database.verbs) == ("other", ["INSERT", "SELECT"])


def test_an_expired_row_is_deleted_first():
    database = Database("other", is_alive=False)
    assert added(database) is None
    assert (database.row, database.verbs) == ("new", ["INSERT", "SELECT", "DELETE", "INSERT"])
