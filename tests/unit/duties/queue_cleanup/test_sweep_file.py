"""The sweep's list of marks without a row: what is no such list any more ends an apply in words, whoever reads it first."""

from types import SimpleNamespace

import pytest

from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.sweep import (
    FILE,
    forget_unusable_plans,
    register_marks_without_row,
)
from mailslice.duty.artifacts import RunFolder, artifacts
from mailslice.model.errors import PlanRefused
from mailslice.model.settings import load_settings


@pytest.fixture
def context(tmp_path):
    """A run of a queue that has registered plans of which none is found again."""
    place = artifacts(load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}))
    folder = RunFolder(place, "queue_cleanup", "spool", "r-1")
    waiting = SimpleNamespace(own=SimpleNamespace(pending_marks=SimpleNamespace(list=lambda _: [])))
    return SimpleNamespace(
        folder=folder, queue="spool", stores=waiting, params=lambda _: Params(sweep=True)
    )


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"3", b'"x"'])
def test_a_damaged_list_is_refused(context, text):
    context.folder.artifacts.write(context.folder.file(FILE), text)
    with pytest.raises(PlanRefused, match=r"marks-without-row.json .*plan again"):
        forget_unusable_plans(context)
    with pytest.raises(PlanRefused, match=r"marks-without-row.json .*plan again"):
        register_marks_without_row(context, SimpleNamespace(marks_without_row="a digest"))


def test_a_list_that_was_not_written_or_names_nothing_is_none(context):
    forget_unusable_plans(context)
    context.folder.write_json(FILE, {"left": [], "unusable": []})
    forget_unusable_plans(context)
