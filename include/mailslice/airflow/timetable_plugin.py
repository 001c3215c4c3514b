"""Registers `BackfillOnly`: Airflow stores no DAG whose own timetable no plugin registers."""

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from mailslice.airflow.timetable import BackfillOnly


class MailsliceTimetables(AirflowPlugin):
    """The timetable of `MAILSLICE_STACK_SCHEDULES=off`."""

    name = "mailslice_timetables"
    timetables: ClassVar = [BackfillOnly]
