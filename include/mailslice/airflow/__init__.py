"""A duty as a chain of Airflow tasks.

Airflow imports it by dags/ and by entry points. The rest of mailslice runs without Airflow.
"""
