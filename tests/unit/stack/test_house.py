"""The figures of the code base: what each measure counts, and that no figure may grow."""

import ast

import pytest

from stack import house
from stack.house import LIMITS, PACKAGE, ROOT, Limit, Measure, limits_table, tightened


def trees(**modules):
    return {PACKAGE / f"{name}.py": ast.parse(text) for name, text in modules.items()}


def test_a_figure_above_what_is_allowed_today_fails(monkeypatch):
    monkeypatch.setitem(house.LIMITS, "vague constants", Limit(0, today=2))
    assert Measure("vague constants", 2).passes
    assert not Measure("vague constants", 3).passes


def test_where_a_goal_is_reached_it_is_the_limit(monkeypatch):
    monkeypatch.setitem(house.LIMITS, "vague constants", Limit(1))
    assert Measure("vague constants", 1).passes
    assert not Measure("vague constants", 2).passes


def test_a_tree_with_a_higher_figure_ends_the_command_with_1(monkeypatch, capsys):
    monkeypatch.setattr(house, "all_measures", lambda: [Measure("import circles", 1, ("a b",))])
    assert house.main([]) == 1
    assert capsys.readouterr().out == "NO  import circles: 1 (limit 0)\n      a b\n"
    assert house.main(["--report"]) == 0


def test_tightening_lowers_a_figure_and_drops_one_whose_goal_is_reached(monkeypatch):
    monkeypatch.setitem(house.LIMITS, "vague constants", Limit(0, today=9))
    monkeypatch.setitem(house.LIMITS, "lines of the product", Limit(43_000, today=50_000))
    source = (
        '    "vague constants": Limit(0, today=9),\n    "lines of the product": Limit(1, today=9),'
    )
    measures = [Measure("vague constants", 0), Measure("lines of the product", 43_101)]
    assert tightened(source, measures) == (
        '    "vague constants": Limit(0),\n    "lines of the product": Limit(43_000, today=43_200),'
    )


def test_tightening_raises_no_figure(monkeypatch):
    monkeypatch.setitem(house.LIMITS, "vague constants", Limit(0, today=2))
    source = '"vague constants": Limit(0, today=2)'
    assert tightened(source, [Measure("vague constants", 3)]) == source


def test_the_page_shows_every_limit():
    rows = limits_table().splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == list(LIMITS)


def test_a_circle_of_imports_counts_late_ones_and_those_for_types():
    product = trees(
        a="import mailslice.b",
        b="def f():\n    from mailslice import c",
        c="if TYPE_CHECKING:\n    from mailslice.a import x",
        d="import mailslice.a",
    )
    assert house.import_circles(product).examples == ("mailslice.a mailslice.b mailslice.c",)


def test_a_vague_name_is_one_with_a_vague_word():
    measure = house.vague_names(trees(a="found = 1\nfoundation = rows_found = 2\nrows = 3"))
    assert measure.examples == ("found: 1", "rows_found: 1")
    assert measure.value == 40.0


def test_a_constant_that_says_not_of_what_is_vague():
    text = "MOST = 1\n_FILE = 2\nMOST_ROWS = 3\n_GONE, ROWS = 1, 2\nPARTS: int = 4"
    assert house.vague_constants(trees(a=text)).value == 4


def test_a_class_name_in_two_modules_has_two_meanings_but_params():
    product = trees(a="class X: ...\nclass Params: ...", b="class X: ...\nclass Params: ...")
    assert house.ambiguous_classes(product).examples == ("X: a.py, b.py",)


def test_classes_that_read_are_counted():
    product = trees(a="class X:\n    def read(self): ...\nclass Y:\n    async def read(self): ...")
    assert house.read_methods(product).value == 2


@pytest.mark.parametrize(
    ("text", "patched"),
    [
        ("monkeypatch.setattr(module, '_private', 1)", 1),
        ("monkeypatch.setattr('a.module._private', 1)", 1),
        ("mock.patch('a.module._private')", 1),
        ("desk._table = None", 1),
        ("desk.queue._table, desk.rows = None, 1", 1),
        ("self._table = None", 0),
        ("zipimport._read_directory = None", 0),
        ("desk.table = None", 0),
        ("monkeypatch.setattr(module, 'public', 1)", 0),
        ("monkeypatch.setattr(type(x), '__len__', 1)", 0),
    ],
)
def test_patches_of_private_names_are_counted_in_tests_alone(text, patched):
    tree = ast.parse(text)
    product = trees(desk="class Desk:\n    def __init__(self):\n        self._table = 1")
    files = product | {ROOT / "tests" / "test_x.py": tree}
    assert house.patched_privates(files).value == patched
    assert house.patched_privates({PACKAGE / "x.py": tree}).value == 0


def test_a_wide_line_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(house, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(f"{'x' * 100}\n{'x' * 101}\n", "utf-8")
    assert house.wide_lines({tmp_path / "a.py": ast.parse("")}).examples == ("a.py:2",)
