"""A duty as a chain of Airflow tasks.

Airflow imports it, by dags/ and by entry points: the rest of mailslice runs without Airflow.
"""
