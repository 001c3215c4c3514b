"""The checks of `mailslice config check` for Postal: whether every mode has what it needs."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

from mailslice.duties.stuck_mails_postal.identity import require_same
from mailslice.maintenance.artifacts import artifacts
from mailslice.model.clock import Clock
from mailslice.model.errors import ConfigurationDiffers, MailsliceError
from mailslice.model.settings import PostalMode
from mailslice.stores import Stores, has_cassandra
from mailslice.stores.mariadb.client import MariaDb
from mailslice.stores.mariadb.failures import NoRight
from mailslice.stores.postal.rights import PostalRight, has_right, rights_of_main, rights_of_server
from mailslice.stores.postal.rows import PostalQueue
from mailslice.stores.postal.schema import check_main, check_messages

EVERY, CHANGING = "every mode", "close and retry"
_MAX_SKEW = 10.0
"""Seconds."""
_IS_STATEMENT_BINLOG = "@@log_bin = 1 AND @@binlog_format = 'STATEMENT'"
_BINLOG = "binlog_format STATEMENT refuses READ COMMITTED. Remedy: MIXED or ROW"
_STALE_DAYS = (
    "postal.queued_message_lock_stale_days is in Postal's own file and cannot be read here. Postal "
    "3.2 and later delete what is locked for this many days (1): set 3650 before close or retry"
)


@dataclass(frozen=True, slots=True)
class PostalCheck:
    """`ok` is None where mailslice cannot know. `needed`: the modes that need the check."""

    check: str
    ok: bool | None
    needed: str
    detail: str


def postal_checks(stores: Stores, clock: Clock) -> dict[str, object]:
    """Every check, and whether the mode of the settings has what it needs.

    Raises BadSetting for a wrong password, StoreUnavailable for a MariaDB that is away.
    """
    mode = stores.settings.postal.mode
    checks = list(_checks(stores, clock))
    needed = {EVERY} if mode is PostalMode.SHADOW else {EVERY, CHANGING}
    return {
        "server": stores.postal.main.address,
        "mode": mode.value,
        "ok": not any(check.ok is False and check.needed in needed for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _checks(stores: Stores, clock: Clock) -> Iterator[PostalCheck]:
    postal = stores.postal
    main = postal.main
    yield from _connection("main database", main)
    if not postal.same_server:
        yield from _connection("message databases", postal.messages)
    yield _clock(main, clock)
    yield _schema("schema", partial(check_main, main))
    yield from _rights("rights", main, list(rights_of_main(main.url.database)))
    yield from _servers(stores)
    yield _own(stores)
    try:
        require_same(stores)
    except ConfigurationDiffers as error:
        yield PostalCheck("own tables: Postal", False, EVERY, str(error))
    except MailsliceError:
        pass  # an earlier check says why
    yield _artifacts(stores)
    yield PostalCheck("stale locks", None, CHANGING, _STALE_DAYS)


def _connection(check: str, db: MariaDb) -> Iterator[PostalCheck]:
    ((version, refuses),) = db.rows(f"SELECT VERSION(), {_IS_STATEMENT_BINLOG}")
    yield PostalCheck(check, True, EVERY, f"MariaDB {version} at {db.address}, user {db.url.user}")
    ((_, cipher),) = db.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    words = f"encrypted, {cipher}" if cipher else "not encrypted: MAILSLICE_POSTAL_TLS_ENABLED"
    yield PostalCheck(f"{check}: TLS", True, EVERY, words)
    if refuses:
        yield PostalCheck(f"{check}: binlog", False, CHANGING, _BINLOG)


def _clock(main: MariaDb, clock: Clock) -> PostalCheck:
    skew = (PostalQueue(main).now() - clock().replace(tzinfo=None)).total_seconds()
    words = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    return PostalCheck("clock", abs(skew) <= _MAX_SKEW, EVERY, f"the database's is {words}")


def _schema(check: str, query: Callable[[], None]) -> PostalCheck:
    try:
        query()
    except NoRight:
        return PostalCheck(check, None, EVERY, "it may not be read: see rights")
    except MailsliceError as error:
        return PostalCheck(check, False, EVERY, str(error))
    return PostalCheck(check, True, EVERY, "that of Postal 2.0 to 3.3")


def _rights(check: str, db: MariaDb, rights: list[PostalRight]) -> Iterator[PostalCheck]:
    """Two checks: rights to read, and rights to change. Each names the missing grants."""
    for needed, changes in ((EVERY, False), (CHANGING, True)):
        checked = [right for right in rights if right.changes is changes]
        # Grants are kept as statements, with each % of a name doubled.
        missing = [right.grant.replace("%%", "%") for right in checked if not has_right(db, right)]
        words = f"GRANT {'; GRANT '.join(missing)}" if missing else "all of docs/postal.md"
        yield PostalCheck(f"{check} for {needed}", not missing, needed, words)


def _servers(stores: Stores) -> Iterator[PostalCheck]:
    postal = stores.postal
    try:
        servers = list(PostalQueue(postal.main).servers())
    except MailsliceError as error:
        yield PostalCheck("servers", False, EVERY, str(error))
        return
    yield PostalCheck("servers", True, EVERY, f"{len(servers)} mail servers")
    for server in servers:
        db, database = postal.messages, postal.database_of(server)
        schema = _schema(f"server {server}: schema", partial(check_messages, db, database))
        if schema.ok is not False:
            checks = [*_rights(f"server {server}: rights", db, list(rights_of_server(database)))]
            yield from (check for check in checks if not check.ok)
            if schema.ok and all(check.ok for check in checks):
                yield PostalCheck(f"server {server}", True, EVERY, f"{database}: all is there")
        if not schema.ok:
            yield schema


def _own(stores: Stores) -> PostalCheck:
    if has_cassandra(stores.settings):
        return PostalCheck("own tables", True, EVERY, "in Cassandra")
    own = stores.own_database
    own.require_own()
    where = f"database {own.url.database} at {own.url.address}"
    ok: bool | None = False
    if own.rows(f"SELECT {_IS_STATEMENT_BINLOG}") == [(1,)]:
        words = _BINLOG
    elif (missing := own.missing_rights()) is None:
        ok, words = None, f"{where}: rights by a role cannot be looked at"
    elif missing:
        words = f"{where}: GRANT {', '.join(missing)} ON `{own.url.database}`.*"
    else:
        ok, words = True, where if own.exists() else f"{where}: the first run makes it"
    return PostalCheck("own tables", ok, EVERY, words)


def _artifacts(stores: Stores) -> PostalCheck:
    folder, name = artifacts(stores.settings), f"config-check-{secrets.token_hex(4)}"
    try:
        folder.write(name, b"")
        folder.remove(name)
    except MailsliceError as error:
        return PostalCheck("artifacts", False, EVERY, str(error))
    return PostalCheck("artifacts", True, EVERY, f"{folder.location} can be written")
