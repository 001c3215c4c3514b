"""The cockpit: pages on which people see how mail queues are, and act on them.

Rendered on the server by Jinja2; htmx fetches parts anew, uPlot draws. Both are served from here,
nothing comes from outside. The page only reads: every act is a run that Airflow starts as the user.
"""
