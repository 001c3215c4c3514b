"""spark-submit jobs/stuck_mails.py STEP --queue Q --run RUN [--dag-run ID] [--who W] [--params
JSON]: one step of stuck_mails.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("stuck_mails", sys.argv[1:]))
