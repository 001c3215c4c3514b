"""What the one-shot `airflow-init` does before Airflow's services start: database, Spark's pool,
the demo's login.
"""

import json
import os
import subprocess
from pathlib import Path


def main() -> None:
    """Every step may run again: an upgrade runs this anew."""
    subprocess.run(["airflow", "db", "migrate"], check=True)
    subprocess.run(["airflow", "pools", "set", "spark", "1", "one Spark job at a time"], check=True)
    passwords = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    passwords.touch(mode=0o600)
    passwords.write_text(
        json.dumps({"admin": os.environ["MAILSLICE_ADMIN_PASSWORD"]}), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
