from mailslice.model.settings import clone_root, variables
from stack.pages import pages
from stack.settings import stack_variables


def test_the_pages_under_docs_are_the_generated_ones() -> None:
    for name, text in pages(clone_root()).items():
        assert (clone_root() / "docs" / name).read_text(encoding="utf-8") == text, (
            f"docs/{name} is old: make docs"
        )


def test_every_variable_is_on_the_settings_page() -> None:
    page = pages(clone_root())["settings.md"]
    assert [name for name in (*variables(), *stack_variables()) if f"| {name} |" not in page] == []


def test_no_secret_hides_behind_stars_on_the_settings_page() -> None:
    assert "***" not in pages(clone_root())["settings.md"]
