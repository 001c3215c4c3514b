"""The mail of `make run`: each source is enqueued once, in several slices, and a part of it is drained. Killed half way, it goes on where it was.

The mails of a source are first written one a file into the state folder; a file is removed when `mail enqueue` has said that its mail is durable.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mailslice.codec.files import read_mails
from mailslice.local.command_line import CommandLine
from mailslice.local.problems import CannotStart
from mailslice.local.settings import StackSettings
from mailslice.local.steps import Step
from mailslice.model.durations import parse_duration

QUEUE = "spool"
_SLICES = 5
_DRAINED_SLICES = 3
_SAMPLE = "tests/data/sample"


@dataclass(slots=True)
class Progress:
    """What was done with one source; kept in the state folder."""

    source: str
    mails: int = 0
    spooled: bool = False
    enqueued: int = 0
    drained: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def to_drain(self) -> int:
        """The mails of the first slices."""
        share = -(-self.enqueued * _DRAINED_SLICES // _SLICES)
        return max(0, share - self.drained)


class DemoMail:
    """One source of mail and how far it got."""

    def __init__(self, stack: StackSettings, source: Path) -> None:
        if not source.exists():
            raise CannotStart(f"MAIL={source}: no such file or folder. Remedy: name a folder of .eml files, an mbox or a Maildir")
        self._source = source
        self._folder = stack.state / "mail" / hashlib.sha256(_identity(source).encode()).hexdigest()[:16]
        self._file = self._folder / "progress.json"
        self.progress = Progress(**json.loads(self._file.read_text(encoding="utf-8"))) if self._file.is_file() else Progress(str(source))

    @property
    def enqueued(self) -> bool:
        """Whether nothing is left to enqueue."""
        return self.progress.spooled and not any((self._folder / "waiting").rglob("*.eml"))

    def spool(self) -> None:
        """Writes each mail of the source into a file of its own, dealt out over the slices in order."""
        if self.progress.spooled:
            return
        waiting = self._folder / "waiting"
        shutil.rmtree(waiting, ignore_errors=True)
        files: list[Path] = []
        self.progress.failures = []
        for number, found in enumerate(read_mails(self._source)):
            if found.content is None:
                self.progress.failures.append(f"{found.label}: {found.error}")
                continue
            waiting.mkdir(parents=True, exist_ok=True)
            files.append(waiting / f"{number:08d}.eml")
            files[-1].write_bytes(found.content)
        if not files:
            raise CannotStart(f"MAIL={self._source}: no mail was found there. Remedy: name a folder of .eml files, an mbox or a Maildir")
        for index, file in enumerate(files):
            folder = waiting / f"slice-{index * _SLICES // len(files)}"
            folder.mkdir(exist_ok=True)
            file.rename(folder / file.name)
        self.progress.mails = len(files)
        self.progress.spooled = True
        self._save()

    def enqueue(self, commands: CommandLine, window: str, step: Step) -> None:
        """Enqueues what waits, each group in a slice of its own."""
        seconds = parse_duration(window).total_seconds()
        for folder in sorted((self._folder / "waiting").iterdir()):
            if not any(folder.iterdir()):
                continue
            time.sleep(seconds - time.time() % seconds + 0.1)
            for line in commands.lines("mail", "enqueue", QUEUE, str(folder)):
                self._enqueued(line)
                step.tell(f"{self.progress.enqueued} of {self.progress.mails}")
            self._save()

    def drain(self, commands: CommandLine, step: Step) -> None:
        """Takes the mails of the first slices off the queue, as a worker does."""
        if self.progress.to_drain:
            for line in commands.lines("worker", "drain", QUEUE, "--max", str(self.progress.to_drain), "--outcome", "success"):
                if "enqueueId" in line:
                    self.progress.drained += 1
                    step.tell(f"{self.progress.drained} completed")
                    self._save()

    def _enqueued(self, line: dict[str, object]) -> None:
        file = Path(str(line.get("path", "")))
        if "enqueueId" in line:
            self.progress.enqueued += 1
        else:
            self.progress.failures.append(f"{file.name}: {line.get('error')}")
        self._save()
        file.unlink(missing_ok=True)

    def _save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        coming = self._file.with_suffix(".coming")
        coming.write_text(json.dumps(asdict(self.progress)), encoding="utf-8")
        coming.replace(self._file)


def source_of(stack: StackSettings, given: str | None, *, from_environment: bool) -> Path:
    """The source that MAIL names; the sample when it names none, or when it is the mailbox that a login shell sets it to."""
    if not given or (from_environment and given.startswith(("/var/mail/", "/var/spool/mail/"))):
        return stack.root / _SAMPLE
    return Path(given).expanduser().absolute()


def _identity(source: Path) -> str:
    """Path, names and sizes: a source that grew is another one."""
    files = [source] if source.is_file() else sorted(Path(parent, name) for parent, _, names in os.walk(source) for name in names)
    return "\n".join([str(source), *(f"{file.name} {file.stat().st_size}" for file in files if file.is_file())])
