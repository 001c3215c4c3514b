"""Java parts by coordinates: Apache Ivy, which pyspark ships, fetches them into a cache that all
clones of a user share.

`files/NAME-VERSION.jars` lists every jar of a version with its SHA-256 (`make lock` writes it).
What is listed is fetched as listed, without reading a single POM: 40 s for the S3 server, where
resolving takes 160 s. Another version is resolved from `files/NAME.ivy.xml`.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from xml.etree import ElementTree as ET

from stack.bootstrap import java_17, locked
from stack.program import FILES, CannotStart, filled
from stack.settings import Sizes

NAMES = ("cassandra", "s3proxy")
"""The parts that `make setup` fetches."""
FOR_TESTS = ("yarn", "james")
"""The parts that the first test which needs one fetches."""
_TIMEOUT_SECONDS = 1200


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """One line of a list: Maven coordinates and SHA-256 (hex)."""

    organisation: str
    module: str
    revision: str
    classifier: str
    """`-` when there is none."""
    sha256: str

    @property
    def file(self) -> str:
        """Its name in the part's folder."""
        classifier = "" if self.classifier == "-" else f"-{self.classifier}"
        return f"{self.module}-{self.revision}{classifier}.jar"

    @property
    def line(self) -> str:
        """Its line in the list."""
        return f"{self.organisation} {self.module} {self.revision} {self.classifier} {self.sha256}"


@cache
def java() -> Path:
    """The `java` of version 17 that runs the stack and Spark. Raises CannotStart without one."""
    java = java_17()
    if java is None:
        raise CannotStart(
            "no Java 17 was found (looked at JAVA_HOME, PATH and /usr/lib/jvm). "
            "Remedy: apt-get install -y openjdk-17-jre-headless"
        )
    return java


def java_home() -> Path:
    """JAVA_HOME of `java()`."""
    return java().resolve().parent.parent


def part(name: str, sizes: Sizes) -> Path:
    """The folder with the jars of one of NAMES or FOR_TESTS, fetched when it is not there.

    Raises CannotStart with the remedy.
    """
    jars = listed(name, sizes)
    module = _listed_module(name, jars) if jars else _required_module(name, sizes)
    digest = hashlib.sha256((module + repr(jars)).encode()).hexdigest()[:12]
    folder = sizes.cache / "java" / f"{name}-{_version(name, sizes)}-{digest}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        (folder.parent / f"{name}.lock").touch()
    except OSError as error:
        raise CannotStart(
            f"{error.filename}: {error.strerror}. Remedy: let this user write there, or set "
            "MAILSLICE_STACK_CACHE to another folder"
        ) from None
    with locked(folder.parent / f"{name}.lock"):
        if not folder.is_dir():
            scratch = folder.with_name(folder.name + ".partial")
            _fetch(name, module, scratch, as_listed=bool(jars))
            _verify(name, jars, scratch)
            scratch.rename(folder)
    return folder


def listed(name: str, sizes: Sizes) -> tuple[Jar, ...]:
    """The listed jars of a part; empty for a version that is not listed."""
    file = FILES / list_file(name, sizes)
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return tuple(Jar(*line.split()) for line in lines)


def list_file(name: str, sizes: Sizes) -> str:
    """Name of the file that lists a part's jars."""
    return f"{name}-{_version(name, sizes)}.jars"


def resolve(name: str, sizes: Sizes) -> tuple[Jar, ...]:
    """The jars of a part as Ivy resolves them now, from the POMs: what `make lock` lists."""
    scratch = sizes.cache / "java" / f"{name}.locking"
    scratch.parent.mkdir(parents=True, exist_ok=True)
    cache = _fetch(name, _required_module(name, sizes), scratch, as_listed=False)
    path = next(cache.glob(f"mailslice-{name}*-runtime.xml"))
    report = ET.parse(path).getroot()  # noqa: S314 - Ivy wrote it just now
    jars = [
        Jar(
            module.get("organisation", ""),
            module.get("name", ""),
            revision.get("name", ""),
            _classifier(artifact),
            _sha256(Path(artifact.get("location", ""))),
        )
        for module in report.iterfind(".//module")
        for revision in module.iterfind("revision")
        for artifact in revision.iterfind("artifacts/artifact")
    ]
    shutil.rmtree(scratch)
    return tuple(sorted(jars))


def _version(name: str, sizes: Sizes) -> str:
    version: str = getattr(sizes, f"{name}_version")
    return version


def _required_module(name: str, sizes: Sizes) -> str:
    return filled(f"{name}.ivy.xml", version=_version(name, sizes))


def _listed_module(name: str, jars: tuple[Jar, ...]) -> str:
    module = ET.Element(
        "ivy-module", {"version": "2.0", "xmlns:m": "http://ant.apache.org/ivy/maven"}
    )
    ET.SubElement(module, "info", {"organisation": "mailslice", "module": name})
    ET.SubElement(ET.SubElement(module, "configurations"), "conf", {"name": "runtime"})
    dependencies = ET.SubElement(module, "dependencies", {"defaultconf": "runtime->default"})
    nodes: dict[tuple[str, str, str], ET.Element] = {}
    for jar in jars:
        key = (jar.organisation, jar.module, jar.revision)
        if key not in nodes:
            about = dict(zip(("org", "name", "rev"), key, strict=True), transitive="false")
            nodes[key] = ET.SubElement(dependencies, "dependency", about)
        artifact = {"name": jar.module, "type": "jar", "ext": "jar"}
        if jar.classifier != "-":
            artifact["m:classifier"] = jar.classifier
        ET.SubElement(nodes[key], "artifact", artifact)
    return ET.tostring(module, encoding="unicode")


def _fetch(name: str, module: str, target: Path, *, as_listed: bool) -> Path:
    """Lets Ivy fill the folder `target`; gives Ivy's own cache."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    cache, log, ivy_file = target / ".ivy", target.parent / f"{name}.log", target / ".ivy.xml"
    ivy_file.write_text(module, encoding="utf-8")
    command = [str(java()), "-jar", str(_ivy_jar()), "-cache", str(cache), "-ivy", str(ivy_file)]
    if as_listed:
        settings = target / ".ivysettings.xml"
        settings.write_bytes((FILES / "listed.ivysettings.xml").read_bytes())
        command += ["-settings", str(settings)]
    command += ["-retrieve", str(target / "[artifact]-[revision](-[classifier]).[ext]")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotStart(
            f"the jars of {name} were not there after {_TIMEOUT_SECONDS // 60} minutes. Remedy: "
            "check the network or the proxy settings, then make setup"
        ) from None
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode or not any(target.glob("*.jar")):
        raise CannotStart(
            f"the jars of {name} could not be fetched ({_cause(done.stdout + done.stderr)}). "
            f"Remedy: look at the network and at {log}, then make setup"
        )
    return cache


def _verify(name: str, jars: tuple[Jar, ...], folder: Path) -> None:
    for jar in jars:
        file = folder / jar.file
        if not file.is_file() or _sha256(file) != jar.sha256:
            raise CannotStart(
                f"{jar.file} of {name} is missing or is not the file that mailslice lists (SHA-256 "
                f"{jar.sha256[:12]}...). Remedy: make setup again"
            )
    for leftover in folder.glob(".ivy*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _classifier(artifact: ET.Element) -> str:
    named = (value for name, value in artifact.attrib.items() if name.endswith("classifier"))
    return next(named, "-")


def _cause(output: str) -> str:
    telling = ("unresolved dependency", "UNRESOLVED", "FAILED", "Exception", "timed out")
    lines = [line for line in output.splitlines() if any(word in line for word in telling)]
    return lines[0].strip(" :\t") if lines else "no reason given"


def _ivy_jar() -> Path:
    spec = util.find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise CannotStart(
            "pyspark, which ships the resolver of the Java parts, is not installed. Remedy: make "
            "setup"
        )
    return jars[-1]
