"""Pages stay what they promise to be: short, complete, and true of the code."""

import re

import pytest

from mailslice.maintenance import registry
from mailslice.model.settings import clone_root, variables
from stack.settings import stack_variables

DOCS = clone_root() / "docs"
INVARIANTS = (DOCS / "invariants.md").read_text(encoding="utf-8")


def test_the_architecture_fits_a_screen_or_two():
    lines = (DOCS / "architecture.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 200] == []


def test_every_package_and_wing_is_on_the_architecture_page():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    package = clone_root() / "include" / "mailslice"
    packages = [folder.parent.name for folder in package.glob("*/__init__.py")]
    wings = [folder.parent.name for folder in (package / "worker").glob("*/__init__.py")]
    assert [name for name in packages if f"| `mailslice.{name}` |" not in text] == []
    assert [name for name in wings if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("number", range(1, 10))
def test_every_invariant_names_tests(number):
    rule = re.search(rf"^## I{number}\n(.*?)(?=^## )", INVARIANTS, re.MULTILINE | re.DOTALL)
    assert rule
    assert len(re.findall(r"^- `tests/[\w/]+\.py::test_\w+`$", rule[1], re.MULTILINE)) >= 3


def test_no_decision_names_a_number_that_another_one_includes():
    numbers = {int(file.name[:4]) for file in (DOCS / "adr").glob("[0-9]*.md")}
    for file in (DOCS / "adr").glob("[0-9]*.md"):
        text = file.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(file.name[:4])}. "), file.name
        included = re.search(r"^Includes: ([\d, ]+)$", text, re.MULTILINE)
        assert not numbers & set(map(int, re.findall(r"\d+", included[1] if included else "")))


def test_every_decision_has_the_four_parts():
    for file in (DOCS / "adr").glob("[0-9]*.md"):
        headings = re.findall(r"^## (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        expected = {"Context", "Decision", "Consequences", "Alternatives"}
        assert expected <= set(headings), file.name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_the_pages_outside_of_docs_lead_somewhere(page):
    text = (clone_root() / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text)
    assert links
    assert [link for link in links if not (clone_root() / link).exists()] == []


def test_the_readme_names_every_duty():
    text = (clone_root() / "README.md").read_text(encoding="utf-8")
    assert [name for name in registry.names() if f"`{name}`" not in text] == []


def test_every_setting_that_a_page_names_exists():
    known = {*variables(), *stack_variables(), *(f"{name}_FILE" for name in variables())}
    for page in [*DOCS.rglob("*.md"), clone_root() / "README.md"]:
        names = re.findall(r"\bMAILSLICE_[A-Z0-9_]+[A-Z0-9]\b(?!_|\.\.\.)", page.read_text("utf-8"))
        unknown = {name for name in names if not name.startswith("MAILSLICE_TEST_")} - known
        assert not unknown, page.name


def test_no_command_of_a_page_takes_mailslice_from_a_package_index():
    """No index has it: who owns the name there is not us."""
    for page in [*DOCS.rglob("*.md"), clone_root() / "README.md"]:
        commands = re.findall(
            r"^[\w/ -]*pip install .*$|`pip install [^`]+`", page.read_text("utf-8"), re.MULTILINE
        )
        assert [one for one in commands if re.search(r"[ '\"]mailslice\b", one)] == [], page.name


def test_the_page_of_reading_only_names_james_properties_as_the_settings_page_does():
    settings = (DOCS / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(MAILSLICE_\w+)` \| `([\w.]+)`",
        (DOCS / "james-read-only.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == 7
    for name, james in rows:
        assert re.search(rf"^\| {name} \|.*`{re.escape(james)}` \|", settings, re.MULTILINE), name


def test_the_page_of_airflow_counts_the_dags():
    """One a duty, and the one of actions."""
    dags = len([file for file in (clone_root() / "dags").glob("*.py") if file.stem != "__init__"])
    assert dags == len(registry.names()) + 1 == 12
    counts = re.findall(
        r"(\w+) DAGs (?:run in Airflow|\(`eu_)", (DOCS / "airflow.md").read_text("utf-8")
    )
    assert counts == ["twelve", "twelve"]
