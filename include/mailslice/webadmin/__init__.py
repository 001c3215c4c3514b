"""James' own webadmin routes for mail queues and their tasks (reference: Apache James' webadmin).

The routes depend on `tasks.Tasks` and on one guard a right, not on a process or a kind of login.
`in_process` runs the tasks of `mailslice webadmin`, `airflow.dag_tasks` those of Airflow's page.
"""
