"""Prints the URL of Airflow's database, for AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD.

The password is a secret's file, of any characters: here it is escaped as a URL needs it.
"""

import sys
from pathlib import Path
from urllib.parse import quote


def url(password: str) -> str:
    """The URL of the service `postgres`."""
    return f"postgresql+psycopg2://airflow:{quote(password, safe='')}@postgres:5432/airflow"


if __name__ == "__main__":
    print(url(Path(sys.argv[1]).read_text(encoding="utf-8").rstrip("\r\n")), end="")  # noqa: T201
