"""Measures the state of the code base: import circles, vague names, widths, patched privates,
citations.

`python stack/house.py` (`make lint`) prints one line a measure and exits 1 where one is above its
limit. LIMITS is the only table of them: `--tighten` lowers what the tree has reached, `make docs`
copies it into docs/architecture.md. Standard library only.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "include" / "mailslice"
NOT_PRODUCT = ("bench", "testing")
"""Packages that are tools: they do not count as lines of the product."""
CODE = ("include", "dags", "jobs", "plugins", "tests", "stack", "docker")
MAX_COLUMNS = 100

VAGUE_WORDS = frozenset(
    """
    found each told tell tells said say seen wanted what there given left kept keep held hold holds
    road door doors rooms doings wiring standing again mine theirs ours aside apart acting quick
    look looks looking judge judged news spent spared glance alike few some twice thing things
    noting failing leftovers strays stray surfaced place places here whole gone
    """.split()
)
"""Words that name nothing in the field (RFC 5321, AMQP, CQL, Spark, Airflow, James)."""
VAGUE_CONSTANTS = frozenset({"FILE", "MOST", "GONE", "PARTS", "FOLDER"})


@dataclass(frozen=True, slots=True)
class Limit:
    """The goal of a measure, and what is allowed until it is reached: the figure of `today`."""

    goal: float
    today: float | None = None

    @property
    def allowed(self) -> float:
        """The highest figure that passes."""
        return self.goal if self.today is None else self.today


LIMITS = {
    "import circles": Limit(0),
    "vague names, per cent of definitions": Limit(2.0),
    "vague constants": Limit(0),
    "class names with two meanings": Limit(0),
    "classes with a method `read`": Limit(8),
    "lines over 100 columns": Limit(0),
    "patched private names in tests": Limit(0),
    "citations of nothing": Limit(0),
    "lines of the product": Limit(43_000, today=61_561),
}
"""`--tighten` writes the figures of `today`; docs/architecture.md repeats the table."""
STEPS = {"lines of the product": 100}
"""Figures whose `today` is rounded up, so that a line more is no failure."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure with its examples."""

    name: str
    value: float
    examples: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value <= LIMITS[self.name].allowed


def main(arguments: list[str]) -> int:
    """Prints all measures; the exit code. `--report` prints alone, `--tighten` sets `today`."""
    measures = all_measures()
    if "--tighten" in arguments:
        path = Path(__file__).resolve()
        path.write_text(tightened(path.read_text(encoding="utf-8"), measures), encoding="utf-8")
        return 0
    for measure in measures:
        limit = LIMITS[measure.name]
        goal = "" if limit.today is None else f", goal {limit.goal:g}"
        mark = "ok " if measure.passes else "NO "
        print(f"{mark} {measure.name}: {measure.value:g} (limit {limit.allowed:g}{goal})")
        if not measure.passes or "--examples" in arguments:
            for example in measure.examples[:12]:
                print(f"      {example}")
    return 0 if "--report" in arguments or all(measure.passes for measure in measures) else 1


def all_measures() -> list[Measure]:
    """Every figure of LIMITS, measured now."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in python_files(*CODE)}
    product = {file: tree for file, tree in trees.items() if PACKAGE in file.parents}
    return [
        import_circles(product),
        vague_names(product),
        vague_constants(product),
        ambiguous_classes(product),
        read_methods(product),
        wide_lines(trees),
        patched_privates(trees),
        dead_citations(trees),
        product_lines(product),
    ]


def tightened(source: str, measures: Iterable[Measure]) -> str:
    """The source of LIMITS with lower figures as `today`; no `today` where a goal is reached."""
    for measure in measures:
        limit, step = LIMITS[measure.name], STEPS.get(measure.name, 1)
        today = min(math.ceil(measure.value / step) * step, limit.allowed)
        words = f"{limit.goal:_}" if today <= limit.goal else f"{limit.goal:_}, today={today:_}"
        name = re.escape(measure.name)
        source = re.sub(rf'"{name}": Limit\(.*\)', f'"{measure.name}": Limit({words})', source)
    return source


def limits_table() -> str:
    """The table of limits in Markdown, for docs/architecture.md."""
    lines = ["| measure | goal | allowed today |", "|---|---|---|"]
    for name, limit in LIMITS.items():
        lines.append(f"| {name} | {limit.goal:,g} | {limit.allowed:,g} |")
    return "\n".join(lines)


def python_files(*folders: str) -> Iterator[Path]:
    """All Python files below these folders of the repository."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def import_circles(product: dict[Path, ast.Module]) -> Measure:
    """Strongly connected groups of modules; TYPE_CHECKING and late imports count."""
    names = {module_name(file): file for file in product}
    arrows = {name: imported_modules(name, product[file], names) for name, file in names.items()}
    circles = [group for group in strongly_connected(arrows) if len(group) > 1]
    return Measure("import circles", len(circles), tuple(" ".join(sorted(c)) for c in circles))


def module_name(file: Path) -> str:
    """`mailslice.a.b` of a file; a package's `__init__` is the package."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(name: str, tree: ast.Module, known: dict[str, Path]) -> set[str]:
    """Modules of the package that this one imports anywhere in its text."""
    targets = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                targets.add(full if full in known else node.module)
    return {target for target in targets if target in known and target != name}


def strongly_connected(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Tarjan's algorithm, without recursion limits of note: the tree has under 1,000 modules."""
    sys.setrecursionlimit(10_000)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in arrows[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            cut = stack.index(node)
            groups.append(stack[cut:])
            del stack[cut:]

    for node in arrows:
        if node not in index:
            visit(node)
    return groups


def definitions(tree: ast.Module) -> Iterator[str]:
    """Names of functions, classes, parameters, variables and fields that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def vague_names(product: dict[Path, ast.Module]) -> Measure:
    """Share of definitions of which a word is vague."""
    vague: Counter[str] = Counter()
    total = 0
    for file, tree in product.items():
        for name in [module_name(file).rpartition(".")[2], *definitions(tree)]:
            total += 1
            if VAGUE_WORDS & set(words_of(name)):
                vague[name] += 1
    share = round(100 * vague.total() / total, 2)
    examples = tuple(f"{name}: {count}" for name, count in vague.most_common(60))
    return Measure("vague names, per cent of definitions", share, examples)


def words_of(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, lower case."""
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")


T = TypeVar("T", ast.Name, ast.Attribute)


def stored(node: ast.AST, kind: type[T]) -> Iterator[T]:
    """The names or attributes that an assignment sets, those inside of tuples, too."""
    for inner in ast.walk(node):
        if isinstance(inner, kind) and isinstance(inner.ctx, ast.Store):
            yield inner


def vague_constants(product: dict[Path, ast.Module]) -> Measure:
    """Module constants that do not say of what."""
    hits = [
        f"{file.relative_to(ROOT)}: {name.id}"
        for file, tree in product.items()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for name in stored(node, ast.Name)
        if name.id.strip("_") in VAGUE_CONSTANTS
    ]
    return Measure("vague constants", len(hits), tuple(hits))


def ambiguous_classes(product: dict[Path, ast.Module]) -> Measure:
    """Public and private class names that two modules define; `Params` of duties are one idea."""
    homes = defaultdict(set)
    for file, tree in product.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Params":
                homes[node.name].add(str(file.relative_to(PACKAGE)))
    ambiguous = [
        f"{name}: {', '.join(sorted(files))}" for name, files in homes.items() if len(files) > 1
    ]
    return Measure("class names with two meanings", len(ambiguous), tuple(sorted(ambiguous)))


def read_methods(product: dict[Path, ast.Module]) -> Measure:
    """Classes with a method called `read`."""
    classes = [
        f"{file.relative_to(PACKAGE)}: {node.name}"
        for file, tree in product.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name == "read"
    ]
    return Measure("classes with a method `read`", len(classes), tuple(classes))


def wide_lines(trees: dict[Path, ast.Module]) -> Measure:
    """Lines of Python over 100 columns."""
    wide = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in trees
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]
    return Measure("lines over 100 columns", len(wide), tuple(wide))


def patched_privates(trees: dict[Path, ast.Module]) -> Measure:
    """`monkeypatch.setattr` and `patch` of names that begin with an underscore.

    Assignments to such names of the product, too, unless they are an object's own (`self`, `cls`).
    """
    product = {
        name
        for file, tree in trees.items()
        if PACKAGE in file.parents
        for name in definitions(tree)
        if name.startswith("_") and not name.endswith("__")
    }
    hits = []
    for file, tree in trees.items():
        if ROOT / "tests" not in file.parents:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                patched = patched_name(node)
                if patched.rpartition(".")[2].startswith("_") and not patched.endswith("__"):
                    hits.append(f"{file.relative_to(ROOT)}:{node.lineno}: {patched}")
        for target in stored(tree, ast.Attribute):
            own = isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}
            if not own and target.attr in product:
                hits.append(f"{file.relative_to(ROOT)}:{target.lineno}: {target.attr}")
    return Measure("patched private names in tests", len(hits), tuple(hits))


def patched_name(call: ast.Call) -> str:
    """The dotted name that a call patches; empty for a call that patches nothing."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in {
        "setattr",
        "object",
        "patch",
    }:
        return ""
    texts = [a.value for a in call.args[:2] if isinstance(a, ast.Constant)]
    names = [text for text in texts if isinstance(text, str)]
    return names[0] if names else ""


CITING = (
    "docs/**/*.md",
    "include/**/*.md",
    "*.md",
    "requirements.in",
    "Makefile",
    "*.y*ml",
    ".ci/*",
)
"""Files beside the Python files that cite."""
NOT_CITING = ("house.py", "test_citations.py", "CHANGELOG.md")
"""Patterns and examples of citations; the history stays as it was written."""


def dead_citations(trees: dict[Path, ast.Module]) -> Measure:
    """Documents, sections, ADRs, invariants and tests that are cited and do not exist."""
    texts = {file for pattern in CITING for file in ROOT.glob(pattern)}
    citable = Citable.of(ROOT)
    dead = []
    for file in sorted(file for file in {*trees, *texts} if file.name not in NOT_CITING):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            at = f"{file.relative_to(ROOT)}:{number}"
            dead += [f"{at}: {cited}" for cited in citable.missing(line, file.parent)]
    return Measure("citations of nothing", len(dead), tuple(dead))


@dataclass(frozen=True, slots=True)
class Citable:
    """What a comment or a page may cite."""

    root: Path
    adrs: frozenset[int]
    invariants: frozenset[str]
    sections: dict[str, tuple[str, ...]]
    """Page below docs/, without `.md`: its headings."""

    @classmethod
    def of(cls, root: Path) -> Citable:
        """Everything that is there."""
        sections = {
            file.relative_to(root / "docs").with_suffix("").as_posix(): tuple(
                re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            )
            for file in (root / "docs").rglob("*.md")
        }
        numbers = (re.match(r"adr/(\d{4})-", page) for page in sections)
        return cls(
            root,
            frozenset(int(number[1]) for number in numbers if number),
            frozenset(h for h in sections["invariants"] if re.fullmatch(r"I\d+", h)),
            sections,
        )

    def missing(self, line: str, folder: Path) -> Iterator[str]:
        """What a line of a file in this folder cites in vain."""
        for match in re.finditer(r"\bADRs? (\d+(?:(?:, | and |, and )\d+)*)", line):
            numbers = re.findall(r"\d+", match[1])
            yield from (f"ADR {number}" for number in numbers if int(number) not in self.adrs)
        yield from (name for name in re.findall(r"\bI\d+\b", line) if name not in self.invariants)
        for path in re.findall(r"(?<![\w./:*-])(?:\.\./)*([\w./-]*\w\.md)\b", line):
            if not any((base / path).is_file() for base in (self.root, self.root / "docs", folder)):
                yield path
        yield from self.missing_sections(line)
        for path, test in re.findall(r"\b(tests/[\w/]+\.py)::(test_\w+)", line):
            file = self.root / path
            if not file.is_file() or f"def {test}(" not in file.read_text(encoding="utf-8"):
                yield f"{path}::{test}"

    def missing_sections(self, line: str) -> Iterator[str]:
        """`PAGE.md, "Title"`, `PAGE.md, section N` or `runbook, "Title"` without such a heading."""
        for page, quoted, number in re.findall(
            r"\b(?:docs/)?(runbook|[\w/-]+(?=\.md))(?:\.md)?, (?:\"(\w[^\"]+)\"|sections? (\d+))",
            line,
        ):
            start = quoted or f"{number}."
            if not any(title.startswith(start) for title in self.sections.get(page, (start,))):
                yield f"{page}, {quoted or number}"
        yield from re.findall(r"\b(?:design|issue)(?:\.md)?,? sections? [0-9A-Z]", line)


def product_lines(product: dict[Path, ast.Module]) -> Measure:
    """Lines of the product; bench, testing and the local stack are tools."""
    total = sum(
        len(file.read_text(encoding="utf-8").splitlines())
        for file in product
        if file.relative_to(PACKAGE).parts[0] not in NOT_PRODUCT
    )
    return Measure("lines of the product", total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
