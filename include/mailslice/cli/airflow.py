"""`mailslice airflow`: what an Airflow of yours needs to know about an installed mailslice."""

from __future__ import annotations

from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.model.package_files import dags_folder

app = group("The DAGs in an Airflow of yours.")


@command(app, "dags")
def dags(out: Output) -> None:
    """The folder of the DAG files, for `AIRFLOW__CORE__DAGS_FOLDER`."""
    folder = str(dags_folder())
    out.line({"folder": folder}, folder)
