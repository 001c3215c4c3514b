"""spark-submit jobs/dead_letters.py STEP --queue Q --run RUN [--dag-run ID] [--who W] [--params
JSON]: one step of dead_letters.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("dead_letters", sys.argv[1:]))
