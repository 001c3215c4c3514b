"""A duty as a chain of Airflow tasks.

Only dags/ and plugins/ import this package: the rest of mailslice runs without Airflow.
"""
