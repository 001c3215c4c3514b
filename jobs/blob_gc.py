"""spark-submit jobs/blob_gc.py STEP --queue Q --run RUN [--dag-run ID] [--who W] [--params JSON]:
one step of blob_gc.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("blob_gc", sys.argv[1:]))
