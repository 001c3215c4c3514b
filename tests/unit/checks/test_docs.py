"""Data Docs without Great Expectations: pages, entries, the index, and what retention takes."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mailslice.checks.data_docs import Docs
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.retention import prune_docs, prune_sometimes
from mailslice.model.settings import S3Settings

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def world(tmp_path: Path) -> Artifacts:
    return Artifacts(str(tmp_path / "a"), S3Settings())


@pytest.fixture
def publish(world: Artifacts, tmp_path: Path) -> Callable[..., str]:
    """Publishes one gate of a run at an instant; its link."""

    def one(
        run: str, at: datetime = NOON, *, success: bool = True, files: Artifacts = world
    ) -> str:
        site = tmp_path / f"site-{run}-{at:%d%H%M%S%f}"
        page = (
            site
            / "validations"
            / "queue_size"
            / "check"
            / "totals"
            / run
            / f"{at:%Y%m%dT%H%M%SZ}"
            / "page.html"
        )
        page.parent.mkdir(parents=True)
        page.write_text("gx", encoding="utf-8")
        return Docs(files, "queue_size", "spool", run, lambda: at).publish(
            site, "check", success=success, findings=[]
        )

    return one


class Counting(Artifacts):
    """Counts what is read and what is listed."""

    def __init__(self, location: str) -> None:
        super().__init__(location, S3Settings())
        self.read_names: list[str] = []
        self.listed = 0

    def read(self, name: str) -> bytes | None:
        self.read_names.append(name)
        return super().read(name)

    def times(self, name: str) -> dict[str, datetime]:
        found = super().times(name)
        self.listed += len(found)
        return found


def index(world: Artifacts) -> str:
    data = world.read("data_docs/index.html")
    assert data is not None
    return data.decode()


def entry(world: Artifacts, at: datetime, run: str) -> None:
    told = {
        "duty": "queue_size",
        "queue": "spool",
        "run": run,
        "gate": "check",
        "success": True,
        "pages": [],
        "at": f"{at:%Y-%m-%dT%H:%M:%SZ}",
    }
    world.write(
        f"data_docs/entries/{at:%Y-%m-%dT%H}/{at:%H%M%S.%fZ}-{run}-check.json",
        json.dumps({**told, "page": f"gates/{run}.html"}).encode(),
    )


def test_the_index_lists_gates_newest_first_with_links_to_pages_that_are_there(world, publish):
    links = [
        publish(run, NOON + timedelta(minutes=minute))
        for run, minute in (("r1", 0), ("r3", 120), ("r2", 60))
    ]
    text = index(world)
    assert text.index(">r3<") < text.index(">r2<") < text.index(">r1<")
    for run in ("r1", "r2", "r3"):
        assert f'href="gates/queue_size-spool-{run}-check.html"' in text
    assert all(Path(link.removeprefix("file://")).is_file() for link in links)
    assert (
        '<a href="../validations/queue_size/check/totals/r1/20261121T120000Z/page.html">'
        in Path(links[0].removeprefix("file://")).read_text()
    )


def test_a_gate_that_was_tried_again_is_listed_once_as_it_ended(world, publish):
    publish("r1", NOON, success=False)
    publish("r1", NOON + timedelta(minutes=1), success=True)
    assert (index(world).count("<td>r1</td>"), index(world).count("failed")) == (1, 0)


def test_a_gate_looks_at_the_newest_entries_alone_however_many_there_are(world, publish):
    """Entries of 0.1.0 are in a folder a day."""
    for number in range(3000):
        entry(world, NOON - timedelta(hours=1, seconds=30 * number), f"old{number:03d}")
    world.write("data_docs/entries/2026-11-20/235959.000Z-x-check.json", b"{}")
    files = Counting(world.location)
    publish("new", files=files)
    assert len(files.read_names) == 200
    assert files.listed <= 200 + 120, "whole hours, until there are enough"
    text = index(world)
    assert [run for run in ("new", "old000", "old198", "old199") if f">{run}<" in text] == [
        "new",
        "old000",
        "old198",
    ]


def test_what_is_older_than_the_retention_goes_with_all_its_pages(world, publish):
    now, retention = datetime.now(UTC), timedelta(days=90)
    before = now - timedelta(days=100)
    for number in range(3):
        publish(f"old{number}", before + timedelta(hours=number))
    again = before - timedelta(hours=2)
    publish("again", again)
    publish("again", now)
    publish("new", now)
    damaged = json.dumps({"page": "gates/x.html", "pages": ["static/style.css", "a/../b"]})
    for name, text in (("a", damaged), ("b", "{"), ("c", "[]"), ("d", '{"page": 1}')):
        world.write(f"data_docs/entries/{before:%Y-%m-%d}/{name}.json", text.encode())
    world.write("data_docs/static/style.css", b"style")
    aged = [
        name
        for name in world.files("data_docs")
        if "old" in name or "static" in name or ("again" in name and f"{again:%Y%m%d}" in name)
    ]
    for name in aged:
        os.utime(world.path(name), (before.timestamp(), before.timestamp()))
    files = Counting(world.location)
    assert prune_sometimes(files, "queue_size", "spool", now, retention) == []
    assert files.listed == 4 + 4, "the entries that are too old, not all pages"
    left = world.files("data_docs")
    assert not any("old" in name for name in left)
    # What was written anew, or restored, waits until it is as old as its entry.
    assert world.folders("data_docs/entries") == [f"{at:%Y-%m-%dT%H}" for at in (again, now)]
    assert "data_docs/static/style.css" in left
    for run in ("new", "again"):
        entries = 1 + (run == "again")
        assert sum(f"queue_size-spool-{run}" in name for name in left) == 1 + entries
    assert any(
        name.startswith("data_docs/validations/queue_size/check/totals/new/") for name in left
    )
    assert world.folders("data_docs/validations/queue_size/check/totals") == ["again", "new"]


def test_a_gate_that_is_killed_leaves_no_page_without_an_entry(world, publish):
    class Killed(Artifacts):
        def write(self, name: str, data: bytes) -> None:
            super().write(name, data)
            if "validations" in name:
                raise KeyboardInterrupt

    before = datetime.now(UTC) - timedelta(days=100)
    with pytest.raises(KeyboardInterrupt):
        publish("r1", before, files=Killed(world.location, S3Settings()))
    assert world.folders("data_docs/validations/queue_size/check/totals") == ["r1"]
    prune_docs(world, datetime.now(UTC))
    assert world.files("data_docs") == []


def test_docs_are_looked_through_once_in_a_ninetieth_of_the_retention_whoever_reports(world):
    now, retention = datetime.now(UTC), timedelta(days=90)
    prune_sometimes(world, "queue_size", "spool", now, retention)
    entry(world, now - timedelta(days=100), "old")
    prune_sometimes(world, "queue_cleanup", "outgoing", now + timedelta(hours=23), retention)
    assert len(world.files("data_docs/entries")) == 1
    prune_sometimes(world, "queue_cleanup", "outgoing", now + timedelta(hours=24), retention)
    assert world.files("data_docs/entries") == []


def test_gates_that_publish_and_prune_beside_each_other_do_not_disturb_one_another(world, publish):
    now = datetime.now(UTC)
    for number in range(300):
        at = now - timedelta(days=100, minutes=number)
        entry(world, at, f"old{number}")
        world.write(f"data_docs/gates/old{number}.html", b"page")
        os.utime(world.path(f"data_docs/gates/old{number}.html"), (at.timestamp(), at.timestamp()))
    with ThreadPoolExecutor(8) as pool:
        pruning = [pool.submit(prune_docs, world, now - timedelta(days=90)) for _ in range(3)]
        publishing = [
            pool.submit(publish, f"new{number}", now + timedelta(seconds=number))
            for number in range(12)
        ]
        for each in (*pruning, *publishing):
            each.result()
    publish("last", now + timedelta(minutes=1))
    assert [
        run
        for run in ("last", *(f"new{number}" for number in range(12)))
        if f">{run}<" not in index(world)
    ] == []
    assert not any("old" in name for name in world.files("data_docs"))


def test_names_that_are_too_long_for_a_file_stay_apart(world):
    queue = "q" * 150
    one, other = (
        Docs(world, "queue_cleanup", queue, "r" * 190 + end).run_name for end in ("1", "2")
    )
    assert one != other
    assert len(one) == len(other) == 180
    assert Docs(world, "queue_cleanup", "a/b", "r1").run_name == "queue_cleanup-a-b-r1"


@pytest.mark.parametrize("damaged", [b'{"duty": "queue_si', b"\xff", b"[]", b"{}"])
def test_an_entry_that_is_damaged_fails_no_gate_and_is_not_listed(world, publish, damaged):
    publish("before", NOON)
    world.write(f"data_docs/entries/{NOON:%Y-%m-%dT%H}/120001.000Z-x-check.json", damaged)
    publish("after", NOON + timedelta(minutes=1))
    assert [run for run in ("before", "after", "x") if f">{run}<" in index(world)] == [
        "before",
        "after",
    ]
