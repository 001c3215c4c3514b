"""Registers the timetable of MAILSLICE_STACK_SCHEDULES=off, so that Airflow can store DAGs with it."""

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from mailslice.airflow.timetable import BackfillOnly


class MailsliceTimetables(AirflowPlugin):
    """The timetables of mailslice."""

    name = "mailslice_timetables"
    timetables: ClassVar = [BackfillOnly]
