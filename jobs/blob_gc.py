"""One step of blob_gc, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("blob_gc", sys.argv[1:]))
