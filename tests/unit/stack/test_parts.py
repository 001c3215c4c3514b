import hashlib
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from stack import parts
from stack.parts import FOR_TESTS, NAMES, Jar, listed, part
from stack.program import CannotStart
from stack.settings import Sizes

JARS = {"a-1.0.jar": b"one", "b-2.0-linux.jar": b"two"}


def _jars() -> tuple[Jar, ...]:
    return (
        Jar("org.a", "a", "1.0", "-", hashlib.sha256(JARS["a-1.0.jar"]).hexdigest()),
        Jar("org.b", "b", "2.0", "linux", hashlib.sha256(JARS["b-2.0-linux.jar"]).hexdigest()),
    )


@pytest.fixture
def ivy(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Ivy's place is taken by what writes the two jars; the commands it was called with."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        target = Path(command[command.index("-retrieve") + 1]).parent
        for name, content in JARS.items():
            (target / name).write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(parts, "java", lambda: Path("/java"))
    monkeypatch.setattr(parts.subprocess, "run", run)
    monkeypatch.setattr(parts, "listed", lambda *_: _jars())
    return calls


@pytest.mark.parametrize("name", [*NAMES, *FOR_TESTS])
def test_the_default_version_is_listed_with_a_hash_for_each_jar(name: str) -> None:
    jars = listed(name, Sizes())
    assert len(jars) > 90
    assert all(len(jar.sha256) == 64 for jar in jars)
    assert len({jar.file for jar in jars}) == len(jars)


def test_another_version_is_not_listed() -> None:
    assert listed("cassandra", Sizes(cassandra_version="5.0.5")) == ()


def test_jars_are_fetched_once(ivy: list[list[str]], tmp_path: Path) -> None:
    sizes = Sizes(cache=tmp_path)
    first, second = part("cassandra", sizes), part("cassandra", sizes)
    assert first == second
    assert len(ivy) == 1
    assert sorted(file.name for file in first.iterdir()) == sorted(JARS)


def test_a_jar_that_is_not_the_listed_one_is_refused(
    ivy: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JARS, "a-1.0.jar", b"another")
    monkeypatch.setattr(
        parts,
        "listed",
        lambda *_: (Jar("org.a", "a", "1.0", "-", hashlib.sha256(b"one").hexdigest()),),
    )
    with pytest.raises(CannotStart, match=r"a-1\.0\.jar of cassandra .* is not the file"):
        part("cassandra", Sizes(cache=tmp_path))
    assert not [
        folder
        for folder in (tmp_path / "java").glob("cassandra-*")
        if not folder.name.endswith(".partial")
    ]


def test_what_ivy_is_asked_for_is_what_is_listed() -> None:
    module = ET.fromstring(parts._listed_module("x", _jars()))
    found = [
        (
            node.get("org"),
            node.get("name"),
            node.get("rev"),
            node.get("transitive"),
            [artifact.attrib for artifact in node],
        )
        for node in module.iter("dependency")
    ]
    classifier = "{http://ant.apache.org/ivy/maven}classifier"
    assert found == [
        ("org.a", "a", "1.0", "false", [{"name": "a", "type": "jar", "ext": "jar"}]),
        (
            "org.b",
            "b",
            "2.0",
            "false",
            [{"name": "b", "type": "jar", "ext": "jar", classifier: "linux"}],
        ),
    ]


def test_no_network_is_one_line_with_cause_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "noise\n\t\t[FAILED     ] org.a#a;1.0!a.jar:  (0ms)\nmore\n"
    monkeypatch.setattr(parts, "java", lambda: Path("/java"))
    monkeypatch.setattr(
        parts.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 1, said, ""),
    )
    with pytest.raises(CannotStart) as raised:
        part("cassandra", Sizes(cache=tmp_path))
    message = str(raised.value)
    assert "\n" not in message
    assert "[FAILED     ] org.a#a" in message
    assert f"look at the network and at {tmp_path}/java/cassandra.log" in message


def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_moves_it(
    ivy: list[list[str]], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.write_text("not a folder", encoding="utf-8")
    with pytest.raises(
        CannotStart,
        match=(
            rf"^{home}/cache/java: Not a directory\. Remedy: let this user write there, or set "
            r"MAILSLICE_STACK_CACHE to another"
        ),
    ):
        part("cassandra", Sizes(cache=home / "cache"))
    assert ivy == []


def test_a_network_that_never_answers_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1200)

    monkeypatch.setattr(parts, "java", lambda: Path("/java"))
    monkeypatch.setattr(parts.subprocess, "run", run)
    with pytest.raises(
        CannotStart,
        match=r"the jars of s3proxy were not there after 20 minutes\. Remedy: check the network or",
    ):
        part("s3proxy", Sizes(cache=tmp_path))
