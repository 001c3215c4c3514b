"""A cron schedule that can be backfilled but never fires by itself."""

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class BackfillOnly(CronDataIntervalTimetable):
    """The data intervals of a cron expression, for backfills and manual runs alone.

    Airflow refuses to backfill a DAG with `schedule=None`. The scheduler asks with the DAG's own
    `catchup`, which is off; a backfill asks with `catchup` on.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next interval for a backfill, None for the scheduler."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )

    @property
    def summary(self) -> str:
        """What the DAG list shows."""
        return f"{super().summary} (by hand)"
