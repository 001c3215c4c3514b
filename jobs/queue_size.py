"""spark-submit jobs/queue_size.py STEP --queue Q --run RUN [--dag-run ID] [--who W] [--params
JSON]: one step of queue_size.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("queue_size", sys.argv[1:]))
