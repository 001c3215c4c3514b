"""The cockpit: pages on which people watch mail queues, and act on them.

Jinja2 renders the pages on the server, htmx refreshes parts of them, uPlot draws. Both scripts are
served from here. The cockpit only reads: every action is a run that Airflow starts as the user.
"""
