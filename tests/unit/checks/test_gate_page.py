"""The page of a gate, as a person reads it."""

import re

import pytest

from mailslice.checks.gate_page import gate_page, index_page

ENTRY = {
    "duty": "queue_cleanup",
    "queue": "spool",
    "run": "r1",
    "gate": "check",
    "success": True,
    "pages": ["validations/a/page.html"],
    "at": "2026-11-23T12:00:00Z",
    "page": "gates/r1.html",
}
HOSTILE = "<script>alert(1)</script>"


def finding(sentence="No slice is open.", *, success=True, column="open", observed="0"):
    return {
        "expectation": sentence,
        "success": success,
        "column": column,
        "observed": observed,
        "failedRows": 0 if success else 3,
        "rows": 10,
    }


def text_of(page):
    body = page[page.index("<body>") :]
    return " ".join(re.sub("<[^>]+>", " ", body).split())


@pytest.mark.parametrize(
    ("gate", "broken", "says"),
    [
        ("check", 0, "All 2 expectations held. The plan may be applied."),
        (
            "check",
            1,
            "1 of 3 expectations did not hold. The plan was refused, and nothing was changed.",
        ),
        ("verify", 0, "All 2 expectations held. What the run did is as it should be."),
        ("verify", 2, "2 of 4 expectations did not hold. What is in the stores now is not as"),
    ],
)
def test_the_verdict_comes_first_and_says_what_it_means(gate, broken, says):
    found = [finding(), *[finding("It is so.", success=False)] * broken, finding("It is, too.")]
    text = text_of(gate_page({**ENTRY, "gate": gate, "success": not broken}, found))
    verdict = "FAIL" if broken else "PASS"
    assert text.startswith(f"All checks {verdict} queue_cleanup: {gate} of queue spool {says}")


def test_what_does_not_hold_stands_before_everything_else():
    broken = finding("No live mail is planned.", success=False, column="live", observed="m1")
    text = text_of(gate_page({**ENTRY, "success": False}, [finding(), broken]))
    assert "No live mail is planned. Not true for 3 of 10 rows: live was m1 ." in text
    assert text.index("Not true for") < text.index("No slice is open.")


def test_there_is_a_way_back_and_to_the_checks_own_pages():
    page = gate_page(ENTRY, [])
    assert '<a href="../index.html">All checks</a>' in page
    assert '<a href="../validations/a/page.html">page</a>' in page
    assert "There was nothing to look at." in page


def test_the_index_counts_what_failed():
    text = text_of(index_page([ENTRY, {**ENTRY, "success": False}]))
    assert "The newest 2 checks of all runs. 1 of them failed." in text
    assert (text.count("PASS"), text.count("FAIL")) == (1, 1)
    assert "No run has been checked yet." in index_page([])


def test_text_of_strangers_is_text():
    for page in (
        gate_page({**ENTRY, "queue": HOSTILE}, [finding(HOSTILE, success=False, observed=HOSTILE)]),
        index_page([{**ENTRY, "queue": HOSTILE}]),
    ):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
