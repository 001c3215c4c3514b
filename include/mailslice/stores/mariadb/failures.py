"""Translates PyMySQL's errors into mailslice's: try again, fix the settings, and others."""

import ssl

from pymysql import err

from mailslice.model.errors import BadSetting, MailsliceError, Refused, StoreUnavailable, TryAgain


class Contended(TryAgain):
    """Another transaction locked the row for too long, or the two deadlocked."""


class NoRight(Refused):
    """The user lacks a grant. Whether the object exists is unknown."""


class AlreadyThere(MailsliceError):
    """A row of this key exists."""


class NoSuchObject(MailsliceError):
    """A database, table or column does not exist."""


_LOGIN = {1045, 1130, 1251, 1524, 1698, 1820, 1862, 4151}
_KINDS: tuple[tuple[set[int], type[MailsliceError], str], ...] = (
    (_LOGIN, BadSetting, ". Remedy: the user and the password of the URL"),
    ({2059, 2061}, BadSetting, ". Remedy: a user with mysql_native_password"),
    ({2026}, BadSetting, ": TLS failed, see MAILSLICE_POSTAL_TLS_*"),
    ({1044, 1142, 1143, 1227, 1370}, NoRight, ". docs/postal.md lists the grants"),
    ({1049, 1054, 1059, 1102, 1103, 1109, 1146}, NoSuchObject, ""),
    ({1205, 1213}, Contended, ""),
    ({1062}, AlreadyThere, ""),
    # The server logs statements, so it refuses READ COMMITTED.
    ({1665}, Refused, ". Remedy: binlog_format=MIXED or ROW"),
)
"""Error codes of the server, the error class, and the end of its message."""


def translated(error: BaseException, server: str, setting: str) -> BaseException:
    """Our error for PyMySQL's or a socket's, of `server` (user@host:port) named by `setting`."""
    text = " ".join(" ".join(map(str, error.args)).split())[:240] or type(error).__name__
    words = f"MariaDB {server} ({setting}): {text}"
    if isinstance(error, ssl.SSLError) or "[SSL" in str(error):
        return BadSetting(f"{words}: TLS failed, see MAILSLICE_POSTAL_TLS_*")
    if isinstance(error, OSError | err.InterfaceError):
        return StoreUnavailable(words)
    if not isinstance(error, err.MySQLError | RuntimeError):
        return error
    # RuntimeError: PyMySQL lacks a package that the user's authentication plugin needs.
    code = 2059 if isinstance(error, RuntimeError) else error.args[0] if error.args else 0
    for codes, kind, remedy in _KINDS:
        if code in codes:
            return kind(words + remedy)
    if isinstance(error, err.OperationalError | err.InternalError):
        return StoreUnavailable(words)
    return MailsliceError(words)
