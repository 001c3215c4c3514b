"""Data Docs in a bucket: listed by hours, pruned by folders and single pages, as on a disk."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mailslice.checks.data_docs import Docs
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.retention import prune_docs


@pytest.fixture
def world(fresh) -> Artifacts:
    return Artifacts(f"s3a://{fresh.settings.own.bucket}/artifacts", fresh.settings.s3)


def test_gates_are_listed_newest_first_and_what_is_too_old_goes(world, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for run, at in (
        ("old", now - timedelta(days=100)),
        ("old", now - timedelta(days=1, hours=1)),
        ("r1", now - timedelta(days=1)),
        ("r2", now),
    ):
        page = (
            tmp_path
            / run
            / "validations"
            / "queue_size"
            / "check"
            / "totals"
            / run
            / "then"
            / "page.html"
        )
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("gx", encoding="utf-8")
        Docs(world, "queue_size", "spool", run, lambda at=at: at).publish(
            tmp_path / run, "check", success=True, findings=[]
        )
    index = (world.read("data_docs/index.html") or b"").decode()
    assert index.index(">r2<") < index.index(">r1<") < index.index(">old<")

    prune_docs(world, now - timedelta(days=90))
    assert len(world.files("data_docs/entries")) == 4, "an entry stays as long as its page"
    assert len(world.files("data_docs/gates")) == len(world.files("data_docs/validations")) == 3, (
        "what was tried again has an entry that is young"
    )

    prune_docs(world, now + timedelta(days=2))
    prune_docs(world, now + timedelta(days=2))
    assert world.files("data_docs") == ["data_docs/index.html"]
    Docs(world, "queue_size", "spool", "r3", lambda: now).publish(
        tmp_path / "r2", "check", success=True, findings=[]
    )
    assert ">r3<" in (world.read("data_docs/index.html") or b"").decode()
