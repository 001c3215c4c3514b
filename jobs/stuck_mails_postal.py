"""spark-submit jobs/stuck_mails_postal.py STEP --run RUN [--dag-run ID] [--who W] [--params JSON]:
one step of stuck_mails_postal.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("stuck_mails_postal", sys.argv[1:]))
