"""spark-submit jobs/counter_repair.py STEP --run RUN [--dag-run ID] [--who W] [--params JSON]: one
step of counter_repair.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("counter_repair", sys.argv[1:]))
