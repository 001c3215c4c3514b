"""Whatever a comment, a docstring or a page cites is in the repository."""

import re

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


PACKAGE = clone_root() / "include" / "mailslice"
PACKAGES = "|".join(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))
NAME = re.compile(rf"`(?:mailslice\.)?((?:{PACKAGES}|faults|own)(?:\.\w+)+)[`(]")
EXAMPLE = re.compile("old_exports|NAME")
PATH = re.compile(r"`((?:\w+/)+\w+\.(?:py|md|ya?ml|json))(?:::\w+)?`")


def code_cited_in_vain(text):
    """Dotted names and paths of files in backticks that lead to nothing."""
    for name in NAME.findall(text):
        if not any(exists(prefix + name) for prefix in ("", "testing.", "stores.cassandra.")):
            yield name
    for path in PATH.findall(text):
        roots = (clone_root(), PACKAGE, PACKAGE / "worker", clone_root() / "docs")
        if not any((root / path).exists() for root in roots):
            yield path


def exists(name):
    """Whether a dotted name is a module, or a definition in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        files = [path.with_suffix(".py"), path / "__init__.py"]
        if module := next((file for file in files if file.is_file()), None):
            text = module.read_text(encoding="utf-8")
            return all(re.search(rf"\b{part}\b", text) for part in parts[length:])
    return False


@pytest.mark.parametrize(
    "page", [*DOCS.rglob("*.md"), clone_root() / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_code_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    assert [name for name in code_cited_in_vain(text) if not EXAMPLE.search(name)] == []


def test_code_that_does_not_exist_is_found():
    text = "`stores.blobs.nowhere`, `worker.Nobody`, `worker/nowhere.py`, `maintenance.runner`"
    assert list(code_cited_in_vain(text)) == [
        "stores.blobs.nowhere",
        "worker.Nobody",
        "worker/nowhere.py",
    ]
