"""James' own webadmin routes for mail queues and their tasks (reference: Apache James' webadmin).

The routes know neither the process nor the login: they ask a `tasks.Tasks` and rights by name.
`in_process` is the one that there is (`mailslice webadmin`).
"""
