"""One step of counter_repair, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("counter_repair", sys.argv[1:]))
