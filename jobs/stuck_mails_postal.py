"""One step of stuck_mails_postal, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("stuck_mails_postal", sys.argv[1:]))
