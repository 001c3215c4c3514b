"""The contract of gates, for rows in a list, an Arrow table or a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from mailslice.checks.data_docs import Docs
from mailslice.checks.expectations import Expectation, Frame
from mailslice.checks.gate import evaluate, run_gate
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import GateFailed
from mailslice.model.settings import S3Settings

GOOD = MappingProxyType(
    {
        "id": ["a", "b", "c"],
        "shelf": [1, 1, 2],
        "age": [1, 2, 3],
        "why": ["dead", "dead", "gone"],
        "left": [5, 6, 7],
        "right": [5, 6, 7],
    }
)
RULES = (
    Expectation.between("age", 1, 3, "between"),
    Expectation.equal("shelf", 1, "equal"),
    Expectation.one_of("why", ["dead", "gone"], "one of"),
    Expectation.unique("id", "unique"),
    Expectation.unique(["shelf", "age"], "unique together"),
    Expectation.same("left", "right", "same"),
)
BROKEN = {
    "between": {"age": [1, 2, 4]},
    "equal": {"shelf": [1, 1, 2]},
    "one of": {"why": ["dead", "dead", "live"]},
    "unique": {"id": ["a", "a", "c"]},
    "unique together": {"shelf": [1, 1, 1], "age": [1, 1, 3]},
    "same": {"left": [5, 6, 8]},
}


class GateContract:
    """A subclass gives `rows(columns)`, which makes rows of the engine from columns."""

    @pytest.fixture
    def rows(self):
        raise NotImplementedError

    @pytest.fixture
    def docs(self, tmp_path):
        return Docs(Artifacts(str(tmp_path), S3Settings()), "queue_cleanup", "spool", "r1")

    def broken(self, docs, *frames: Frame) -> Mapping[str, int]:
        """Sentence of each failed expectation -> how many rows break it."""
        findings = evaluate("check", frames, docs).findings
        return {each.sentence: each.failed_rows for each in findings if not each.success}

    def test_each_rule_fails_by_the_rows_that_break_it_and_by_no_other(self, rows, docs):
        good = {**GOOD, "shelf": [1, 1, 1]}
        frames = [
            Frame(name.replace(" ", "_"), rows({**good, **columns}), RULES)
            for name, columns in BROKEN.items()
        ]
        found = evaluate("check", [Frame("good", rows(good), RULES), *frames], docs).findings
        told = {(each.frame, each.sentence, each.failed_rows) for each in found if not each.success}
        assert told == {
            (name.replace(" ", "_"), name, 2 if name.startswith("unique") else 1) for name in BROKEN
        }
        assert {each.rows for each in found} == {3}

    def test_a_value_that_is_missing_breaks_whatever_is_expected_of_its_column(self, rows, docs):
        missing = {name: [None, *values[1:]] for name, values in GOOD.items()}
        found = self.broken(docs, Frame("rows", rows({**missing, "shelf": [None, 1, 1]}), RULES))
        assert {sentence for sentence in found if sentence.startswith("Every row has")} == {
            f"Every row has a value of {name}." for name in GOOD
        }

    def test_no_rows_fail_unless_the_frame_may_be_empty(self, rows, docs):
        nothing = {name: values[:0] for name, values in GOOD.items()}
        assert self.broken(docs, Frame("rows", rows(nothing), RULES)) == {
            "There are rows to judge.": 0
        }
        assert not self.broken(docs, Frame("rows", rows(nothing), RULES, may_be_empty=True))

    def test_a_column_that_is_not_there_fails_and_is_named(self, rows, docs):
        rule = Expectation.between("nosuch", 0, 1, "It is there.")
        with pytest.raises(GateFailed, match="nosuch"):
            run_gate("check", [Frame("rows", rows(dict(GOOD)), [rule])], docs)

    def test_at_most_three_values_reach_the_message_and_the_pages(self, rows, docs):
        ids = [f"secret-{number}" for number in range(50)]
        rule = Expectation.one_of("id", ["other"], "It is the other one.")
        with pytest.raises(GateFailed) as failed:
            run_gate("check", [Frame("rows", rows({"id": ids}), [rule])], docs)
        assert "in 50 of 50 rows" in str(failed.value)
        assert str(failed.value).count("secret-") == 3
        pages = [docs.files.read(name) or b"" for name in docs.files.files("data_docs")]
        shown = {
            one for page in pages for one in ids if f"{one}<" in page.decode("utf-8", "ignore")
        }
        assert len(shown) <= 3
