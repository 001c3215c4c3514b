"""Registers the schedule of `MAILSLICE_STACK_SCHEDULES=off` with Airflow: a DAG that uses a
timetable no plugin names cannot be stored.
"""

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from mailslice.airflow.timetable import BackfillOnly


class MailsliceTimetables(AirflowPlugin):
    """The timetables of mailslice."""

    name = "mailslice_timetables"
    timetables: ClassVar = [BackfillOnly]
