"""One step of dead_letters, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("dead_letters", sys.argv[1:]))
