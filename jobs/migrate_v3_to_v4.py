"""One step of migrate_v3_to_v4, under spark-submit; --help names the arguments."""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("migrate_v3_to_v4", sys.argv[1:]))
