"""The files whose tests start Spark in the test process. One process runs them all.

Each JVM costs more than ten seconds of CPU until its classes are loaded and compiled.
"""

from __future__ import annotations

_SPARK = tuple(
    f"tests/{name}"
    for name in (
        "services/cli/test_read_only.py",
        "services/cli/test_sessions.py",
        "services/cockpit/test_cockpit.py",
        "services/duties/blob_gc/test_with_spark.py",
        "services/duties/counter_repair/test_whole.py",
        "services/duties/migrate_v3_to_v4/test_migration.py",
        "services/duties/queue_cleanup/test_artifacts_on_s3.py",
        "services/duties/queue_cleanup/test_check.py",
        "services/duties/queue_cleanup/test_rows.py",
        "services/duties/queue_cleanup/test_sweep.py",
        "services/webadmin/test_james_operator.py",
        "spark/",
    )
)


def starts_spark(nodeid: str) -> bool:
    """Whether the file of this test starts Spark in the test process."""
    return nodeid.startswith(_SPARK)
