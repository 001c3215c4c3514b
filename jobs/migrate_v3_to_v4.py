"""spark-submit jobs/migrate_v3_to_v4.py STEP --queue Q --run RUN [--dag-run ID] [--who W] [--params
JSON]: one step of migrate_v3_to_v4.
"""

import sys

from mailslice.maintenance.spark_job import main

if __name__ == "__main__":
    sys.exit(main("migrate_v3_to_v4", sys.argv[1:]))
