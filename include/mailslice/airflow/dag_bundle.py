"""The DAGs of an installed mailslice as a bundle of Airflow's DAG processor.

`AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST` names it by its classpath (ADR 75).
"""

from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from mailslice.model.package_files import dags_folder


class MailsliceDagBundle(LocalDagBundle):
    """The folder that `mailslice airflow dags` prints, for any version of Python."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(dags_folder()), **kwargs)
