"""What the one-shot `airflow-init` does before Airflow's services start: database, Spark's pool,
the login of `admin`.
"""

import json
import os
import subprocess
from pathlib import Path


def main() -> None:
    """Every step may run again: an upgrade runs this anew. A pool that is there keeps its slots."""
    subprocess.run(["airflow", "db", "migrate"], check=True)
    pool = "spark"
    if subprocess.run(["airflow", "pools", "get", pool], check=False).returncode:
        words = ["airflow", "pools", "set", pool, "1", "one Spark job at a time"]
        subprocess.run(words, check=True)
    password = Path(os.environ["AIRFLOW_ADMIN_PASSWORD_FILE"]).read_text(encoding="utf-8")
    logins = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    logins.touch(mode=0o600)
    logins.write_text(json.dumps({"admin": password.rstrip("\r\n")}), encoding="utf-8")


if __name__ == "__main__":
    main()
