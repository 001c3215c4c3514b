"""One version: of the package, its changelog and upgrades, and all names of wheels and images."""

import re
from collections.abc import Iterator

from packaging.version import Version

from mailslice import __version__
from mailslice.model.settings import clone_root
from stack.airflow_versions import BETWEEN, OLDEST

ROOT = clone_root()
NOW = Version(__version__)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_follows_the_newest_release_of_the_changelog() -> None:
    log = text("CHANGELOG.md")
    dated = re.findall(r"^## \[(.+)\] - \d{4}-\d\d-\d\d$", log, re.MULTILINE)
    releases = [Version(one) for one in dated]
    assert releases == sorted(releases, reverse=True)
    unreleased = log.partition("## [Unreleased]\n")[2].partition("\n## [")[0].strip()
    if unreleased:
        assert releases[0] < NOW
        assert NOW.is_devrelease
        assert f"### {releases[0]} to {NOW.base_version}\n" in text("docs/upgrade.md")
    else:
        assert releases[0] == NOW


def named() -> Iterator[tuple[str, str]]:
    """File and version of each wheel, sdist and image of ours that a file names."""
    pattern = re.compile(r"mailslice(?:-[a-z]+)?[-:](\d+\.\d+[\w.]*?)(?=-py3|\.tar|[^\w.]|\.?\s|$)")
    for folder, ending in (("docs", "md"), ("deploy", "yaml"), ("docker", "*"), (".", "yaml")):
        for path in (ROOT / folder).glob(f"*.{ending}" if folder == "." else f"**/*{ending}"):
            if path.is_file():
                for version in pattern.findall(path.read_text(encoding="utf-8")):
                    yield str(path.relative_to(ROOT)), version


def test_every_wheel_and_image_that_a_page_or_manifest_names_is_of_this_version() -> None:
    files = {path for path, _ in named()}
    assert {"docs/install.md", "docs/kubernetes.md", "docker-compose.yaml"} <= files
    assert {version for _, version in named()} == {__version__}


def test_the_page_of_versions_has_those_of_airflow_and_spark_that_tests_run() -> None:
    rows = re.findall(
        r"^\| (Airflow|Spark)\b[^|]*\| (\d+\.\d+\.\d+)", text("docs/versions.md"), re.MULTILINE
    )
    pins = dict(
        re.findall(r"^(apache-airflow|pyspark)==(\S+)", text("requirements.txt"), re.MULTILINE)
    )
    assert set(rows) == {
        *(("Airflow", version) for version in (pins["apache-airflow"], BETWEEN, OLDEST)),
        ("Spark", pins["pyspark"]),
    }
