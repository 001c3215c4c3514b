"""What is in the wheel, and that it says what it needs."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
from configparser import ConfigParser
from email.parser import Parser
from importlib.metadata import packages_distributions
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mailslice
from mailslice.cli.extras import EXTRAS
from mailslice.maintenance import registry
from mailslice.model.settings import clone_root

ROOT = clone_root()
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_OF_AIRFLOW = {"fastapi", "starlette", "jinja2", "sqlalchemy"}
BROUGHT = {*_OF_AIRFLOW, "anyio", "annotated_types", "pydantic_core", "typing_extensions"}
"""What Airflow (a plugin is an app of these), Starlette (it waits by anyio) and pydantic (types of
its interface) depend on.
"""


def names(requirements):
    """Distributions by their canonical name, without mailslice's own extras."""
    named = {canonicalize_name(Requirement(text).name) for text in requirements}
    return named - {"mailslice"}


def test_the_wheel_has_a_dag_and_a_job_for_each_duty_as_they_are_in_the_clone(built):
    with ZipFile(built.wheel) as archive:
        for folder in ("dags", "jobs"):
            packed = {
                name.rpartition("/")[2]: archive.read(name)
                for name in archive.namelist()
                if name.startswith(f"mailslice/{folder}/")
            }
            assert packed == {file.name: file.read_bytes() for file in (ROOT / folder).glob("*.py")}
            named = {name.removesuffix(".py") for name in packed}
            assert named - {"mail_actions"} == set(registry.names())


def test_the_wheel_has_every_module_and_file_of_the_product_and_nothing_of_its_tools(built):
    package = ROOT / "include" / "mailslice"
    tools = ("bench", "testing")
    wanted = {
        f"mailslice/{file.relative_to(package)}"
        for file in package.rglob("*")
        if file.is_file()
        and "__pycache__" not in file.parts
        and file.relative_to(package).parts[0] not in tools
    }
    packed = {name for name in built.files() if ".dist-info/" not in name}
    assert {
        name for name in packed if not name.startswith(("mailslice/dags", "mailslice/jobs"))
    } == (wanted)
    assert {"mailslice/py.typed", "mailslice/cockpit/static/cockpit.js"} <= wanted


def test_the_sdist_has_what_the_wheel_has(built):
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    modules = {name for name in built.files() if ".dist-info/" not in name}
    assert {f"include/{name}" for name in modules} <= packed
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml"} <= packed


def test_name_version_licence_and_extras_are_in_the_metadata(built):
    metadata = Parser().parsestr(built.text(".dist-info/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("mailslice", mailslice.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert metadata.get_all("Provides-Extra") == [
        *("worker", "duties", "postal", "webadmin", "airflow", "all"),
    ]
    assert "version" in PROJECT["dynamic"]


def test_airflow_loads_the_plugins_by_their_entry_points(built, plugin_classes):
    config = ConfigParser()
    config.read_string(built.text("entry_points.txt"))
    assert dict(config["airflow.plugins"]) == plugin_classes
    assert dict(config["console_scripts"]) == {"mailslice": "mailslice.cli.main:main"}


@pytest.fixture
def plugin_classes():
    """Every class of the package that is a plugin of Airflow, by its `name`."""
    classes = {}
    for file in (ROOT / "include" / "mailslice" / "airflow").glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "AirflowPlugin" in map(ast.unparse, node.bases):
                [name] = [
                    item.value.value
                    for item in node.body
                    if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "name"
                ]
                classes[name] = f"mailslice.airflow.{file.stem}:{node.name}"
    return classes


def test_twine_takes_both(built):
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", built.sdist, built.wheel],
        check=True,
        capture_output=True,
    )


def test_each_module_that_is_imported_is_of_the_base_or_of_one_extra():
    distributions = packages_distributions()
    declared = names(PROJECT["dependencies"])
    for extra, modules in EXTRAS.items():
        own = names(PROJECT["optional-dependencies"][extra])
        found = {canonicalize_name(name) for module in modules for name in distributions[module]}
        missing = own - found - {"apache-airflow"}  # that one has no module of its own
        assert not missing, f"{extra}: their modules are not in mailslice.cli.extras"
        declared |= own
    imported = {module for file in product_files() for module in third_party(file)} - BROUGHT
    missing = {
        module
        for module in imported
        if declared.isdisjoint(map(canonicalize_name, distributions.get(module, ())))
    }
    assert missing == set()


def product_files():
    package = ROOT / "include" / "mailslice"
    for file in [*package.rglob("*.py"), *(ROOT / "dags").glob("*"), *(ROOT / "jobs").glob("*")]:
        if file.suffix == ".py" and not {"bench", "testing"} & set(file.parts):
            yield file


def third_party(file):
    """Top-level modules that this file imports and that are neither Python's nor ours."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module]
        else:
            continue
        tops = {module.partition(".")[0] for module in modules}
        yield from tops - sys.stdlib_module_names - {"mailslice"}


def test_pip_takes_the_wheel_with_the_constraints_beside_it(built, tmp_path):
    """pip that is given one hash wants the wheel's, too: requirements.txt would refuse it."""
    (recipe,) = re.findall(r"^\t@(sed .*requirements.txt) >", MAKEFILE, re.MULTILINE)
    constraints = tmp_path / "constraints.txt"
    words = ["sh", "-c", f"{recipe.replace('$$', '$')} >{constraints}"]
    subprocess.run(words, cwd=ROOT, check=True)
    pinned = re.compile(r"^[a-z0-9].*==\S+", re.MULTILINE).findall
    pins = pinned(constraints.read_text(encoding="utf-8"))
    assert pins == pinned((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    pip = [f"{sys.base_prefix}/bin/python3", "-m", "pip", "install", "--quiet"]
    alone = ["--no-index", "--no-deps", "--no-compile", "--target", tmp_path / "there"]
    subprocess.run([*pip, *alone, "--constraint", constraints, built.wheel], check=True)
    assert (tmp_path / "there" / "mailslice" / "py.typed").is_file()


def test_what_ci_runs_is_within_the_bounds():
    pins = dict(
        re.findall(
            r"^([a-z0-9.-]+)(?:\[.*\])?==(\S+)",
            (ROOT / "requirements.txt").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    extras = [text for each in PROJECT["optional-dependencies"].values() for text in each]
    bounds = [Requirement(text) for text in (*PROJECT["dependencies"], *extras)]
    bounds = [bound for bound in bounds if bound.name != "mailslice"]
    assert len(bounds) > 20
    for bound in bounds:
        assert bound.specifier.contains(pins[canonicalize_name(bound.name)]), str(bound)
        operators = {each.operator for each in bound.specifier}
        assert operators == {">=", "<"}, f"{bound}: a lower and an upper end"
