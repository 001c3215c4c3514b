"""spark-submit jobs/reclaim.py STEP --run RUN [--dag-run ID] [--who W] [--params JSON]: one step of
reclaim.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("reclaim", sys.argv[1:]))
