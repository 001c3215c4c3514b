"""One step of queue_cleanup, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("queue_cleanup", sys.argv[1:]))
