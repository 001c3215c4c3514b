"""Whatever a comment, a docstring or a page cites is in the repository."""

import pytest

from mailslice.model.settings import clone_root
from stack import house

CITABLE = house.Citable.of(clone_root())
DOCS = clone_root() / "docs"


def test_every_citation_in_code_tests_and_docs_exists():
    trees = dict.fromkeys(house.python_files(*house.CODE))
    assert house.dead_citations(trees).examples == ()


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("see ADR 9", []),
        ("see ADR 9999", ["ADR 9999"]),
        ("ADRs 9, 9998 and 9999", ["ADR 9998", "ADR 9999"]),
        ("a mark outlives its row (I5)", []),
        ("never (I10)", ["I10"]),
        ("reference/rabbitmq.md, [here](reference/james.md#2-message-in-rabbitmq)", []),
        ("docs/nowhere.md", ["docs/nowhere.md"]),
        ("[here](adr/0009-no-such-title.md)", ["adr/0009-no-such-title.md"]),
        ('runbook, "Repair"', []),
        ('docs/runbook.md, "Despair"', ["runbook, Despair"]),
        ("reference/james.md, section 3", []),
        ("reference/james.md, section 33", ["reference/james, 33"]),
        ("design, section 6", ["design, section 6"]),
        (
            "tests/unit/docs/test_citations.py::test_no_such",
            ["tests/unit/docs/test_citations.py::test_no_such"],
        ),
    ],
)
def test_a_citation_of_nothing_is_found(line, missing):
    assert list(CITABLE.missing(line, DOCS)) == missing
