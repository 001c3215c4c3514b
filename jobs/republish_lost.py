"""spark-submit jobs/republish_lost.py STEP --queue Q --run RUN [--dag-run ID] [--who W] [--params
JSON]: one step of republish_lost.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("republish_lost", sys.argv[1:]))
