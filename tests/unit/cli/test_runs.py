"""Which run a single step goes on with, when none is named."""

import pytest

from mailslice.cli.runs import newest_pending
from mailslice.maintenance.artifacts import FILES, RunFolder, artifacts
from mailslice.model.errors import BadInput, PlanRefused
from mailslice.model.settings import load_settings

OLDER, NEWER = "20261120T010000Z-aaaaaa", "20261120T020000Z-bbbbbb"


@pytest.fixture
def settings(tmp_path):
    return load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}, state_file=tmp_path / "none")


def ran(settings, run, *steps):
    for step in steps:
        RunFolder(artifacts(settings), "blob_gc", "-", run).write_json(FILES[step], {})


def test_it_is_the_newest_whose_earlier_steps_ended(settings):
    ran(settings, OLDER, "plan", "check", "apply")
    ran(settings, NEWER, "plan", "check")
    assert newest_pending(settings, "blob_gc", "-", "apply") == NEWER
    assert newest_pending(settings, "blob_gc", "-", "verify") == OLDER
    ran(settings, NEWER, "apply")
    assert newest_pending(settings, "blob_gc", "-", "verify") == NEWER


def test_no_older_plan_is_applied_when_the_newest_was(settings):
    ran(settings, OLDER, "plan", "check", "report")
    ran(settings, NEWER, "plan", "check", "apply")
    with pytest.raises(BadInput, match="no run of blob_gc on - waits for apply"):
        newest_pending(settings, "blob_gc", "-", "apply")


def test_who_planned_anew_does_not_apply_an_older_plan(settings):
    ran(settings, OLDER, "plan", "check", "report")
    ran(settings, NEWER, "plan")
    with pytest.raises(
        BadInput, match=f"{NEWER}, the newest plan of blob_gc on -, has not passed its check"
    ):
        newest_pending(settings, "blob_gc", "-", "apply")
    assert newest_pending(settings, "blob_gc", "-", "check") == NEWER
    ran(settings, NEWER, "check")
    assert newest_pending(settings, "blob_gc", "-", "apply") == NEWER


def test_a_run_that_planned_nothing_stands_in_no_way(settings):
    ran(settings, OLDER, "plan", "check")
    RunFolder(artifacts(settings), "blob_gc", "-", NEWER).write_json("failure.json", {})
    assert newest_pending(settings, "blob_gc", "-", "apply") == OLDER


def test_a_run_of_a_chosen_name_is_as_old_as_its_plan(settings):
    ran(settings, OLDER, "plan", "check")
    ran(settings, "by-hand", "plan")
    with pytest.raises(BadInput, match="run by-hand, the newest plan"):
        newest_pending(settings, "blob_gc", "-", "apply")
    ran(settings, "by-hand", "check")
    assert newest_pending(settings, "blob_gc", "-", "apply") == "by-hand"


def test_a_newer_run_that_cannot_be_read_is_skipped_with_a_warning_and_no_older_plan_is_applied(
    settings, caplog
):
    ran(settings, OLDER, "plan", "check")
    ran(settings, NEWER, "plan", "check")
    assert newest_pending(settings, "blob_gc", "-", "report") == NEWER
    location = artifacts(settings)
    location.write(RunFolder(location, "blob_gc", "-", NEWER).file(FILES["plan"]), b'{"decided": ')
    assert newest_pending(settings, "blob_gc", "-", "report") == OLDER
    assert f"run {NEWER} is passed over" in caplog.text
    with pytest.raises(
        PlanRefused, match=rf"run {NEWER}, the newest of blob_gc on -: .*plan\.json is no JSON"
    ):
        newest_pending(settings, "blob_gc", "-", "apply")


def test_of_a_run_that_ended_the_asked_step_alone_is_read_so_what_broke_of_it_since_is_not_said(
    settings, monkeypatch, caplog
):
    location, read = artifacts(settings), []
    for hour in range(9):
        run = f"20261120T0{hour}0000Z-cccccc"
        ran(settings, run, *FILES)
        location.write(
            RunFolder(location, "blob_gc", "-", run).file(FILES["plan"]), b'{"decided": '
        )
    monkeypatch.setattr(
        RunFolder,
        "read_json",
        lambda self, name, read_json=RunFolder.read_json: (
            read.append(name),
            read_json(self, name),
        )[1],
    )
    for step, looks in (("check", 9), ("apply", 1), ("verify", 9), ("report", 9)):
        with pytest.raises(BadInput, match=f"no run of blob_gc on - waits for {step}"):
            newest_pending(settings, "blob_gc", "-", step)
        assert read == [FILES[step]] * looks
        read.clear()
    assert "passed over" not in caplog.text


def test_none_waits(settings):
    with pytest.raises(BadInput, match="no run of blob_gc on - waits for apply"):
        newest_pending(settings, "blob_gc", "-", "apply")
