"""The plugins of mailslice, for an Airflow that imports it by PYTHONPATH.

An installed mailslice names them as entry points `airflow.plugins`. Airflow reports a plugin that
it meets twice as an error, so nothing is here then.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="mailslice"):
    from mailslice.airflow.page_plugin import MailslicePlugin
    from mailslice.airflow.timetable_plugin import MailsliceTimetables

    __all__ = ["MailslicePlugin", "MailsliceTimetables"]
