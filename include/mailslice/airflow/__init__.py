"""The road of a duty as Airflow tasks. Only files of dags/ and plugins/ import this package: everything else of mailslice runs without Airflow."""
