"""One step of stuck_mails, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("stuck_mails", sys.argv[1:]))
