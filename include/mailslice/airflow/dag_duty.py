"""A duty in one deployment of Airflow: what each of its tasks must know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mailslice.airflow.common_artifacts import require_common_artifacts
from mailslice.airflow.dag_settings import OneDag
from mailslice.airflow.run_request import APPROVE, is_dry
from mailslice.airflow.versions import ApprovalOperator
from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings, load_settings

NO_APPROVALS = (
    "approve: this Airflow asks nobody: approvals need Airflow 3.1 and "
    "apache-airflow-providers-standard; leave `approve` out, or start a dry run"
)


@dataclass(frozen=True, kw_only=True)
class DagDuty:
    """The duty of a DAG, and what the settings of the deployment say about it."""

    duty: str
    settings: OneDag = field(default_factory=OneDag)
    prefix: str = ""
    reads_only: bool = False
    followed: bool = False
    """whether another DAG starts when a run of this one is over"""
    wait: timedelta = timedelta(hours=1)
    """for the answer to an approval"""
    shared_artifacts: bool = False
    load: Callable[[], Settings] = load_settings

    @property
    def connection(self) -> str:
        """Airflow's connection to Spark."""
        return self.settings.connection or "spark_default"

    @property
    def pool(self) -> str:
        """The pool of Spark tasks."""
        return self.settings.pool or "spark"

    @property
    def form_of_approval(self) -> bool | None:
        """The form's default of `approve`; None: nothing is ever approved."""
        return None if self.reads_only else bool(self.settings.approve)

    def ready(self) -> Settings:
        """The settings. Raises BadSetting, also where workers do not share the artifacts."""
        settings = self.load()
        require_common_artifacts(settings, self.shared_artifacts)
        return settings

    def asks(self, context: Mapping[str, Any]) -> bool:
        """Whether a person is asked before this run applies: by its param, or by the settings.

        Raises BadInput where this Airflow cannot ask.
        """
        wanted = bool(self.settings.approve or context["params"].get(APPROVE))
        if self.reads_only or not wanted or is_dry(context):
            return False
        if ApprovalOperator is None:
            raise BadInput(NO_APPROVALS)
        return True
