"""Where Postal's databases are: the main one, and one message database a mail server."""

from functools import cached_property

from mailslice.model.errors import BadSetting
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import PostalSettings
from mailslice.stores.mariadb.client import MariaDb

URL, MESSAGE_URL = "MAILSLICE_POSTAL_URL", "MAILSLICE_POSTAL_MESSAGE_URL"


class PostalDatabases:
    """Both groups of databases, each connected at its first use. For one thread."""

    def __init__(self, settings: PostalSettings) -> None:
        """Raises BadSetting if no URL is set."""
        if settings.url is None:
            raise BadSetting(
                f"{URL} is not set; allowed is mysql://user:password@host:port/database"
            )
        self.settings = settings
        self._url = MariaDbUrl.parse(settings.url.get_secret_value())

    @property
    def same_server(self) -> bool:
        """Whether one connection reaches both groups."""
        return self.settings.message_url is None

    @cached_property
    def main(self) -> MariaDb:
        """The main database. Each statement names it: the connection has no default."""
        return MariaDb(self._url, self.settings, setting=URL)

    @cached_property
    def messages(self) -> MariaDb:
        """The message databases, each named by its statements."""
        if self.settings.message_url is None:
            return self.main
        url = MariaDbUrl.parse(self.settings.message_url.get_secret_value())
        return MariaDb(url.with_database(""), self.settings, setting=MESSAGE_URL)

    def database_of(self, server: int) -> str:
        """The name of a mail server's message database, unquoted."""
        return f"{self.settings.message_prefix}-server-{server}"

    def close(self) -> None:
        """Closes the open connections. May be called twice."""
        for name in ("messages", "main"):
            database = self.__dict__.pop(name, None)
            if database is not None:
                database.close()
