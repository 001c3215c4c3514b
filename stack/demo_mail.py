"""The mail of `make run`: each mail of a source is enqueued once, in several slices, and a part of
them is drained. Killed half way, it goes on where it was.

The mails of a source that are not enqueued yet are first written one a file into the state folder;
a file is removed when `mail enqueue` has said that its mail is durable. Enqueued mails are known by
their content: of a changed source only the new mails are enqueued, and a mail that it holds twice
is two mails.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mailslice.codec.files import read_mails
from mailslice.model.durations import parse_duration
from stack.command_line import CommandLine
from stack.program import CannotStart
from stack.services import free_mib
from stack.settings import StackSettings
from stack.steps import Step

QUEUE = "spool"
_SLICES = 5
_DRAINED_SLICES = 3
_SAMPLE = "tests/data/sample"
_REMEDY = "Remedy: name a folder of .eml files, an mbox or a Maildir"
_SPARE_MIB = 512
"""What the stores need beside the mails: RabbitMQ alone blocks publishers below 256 MiB."""


@dataclass(slots=True)
class Progress:
    """What was done with one source; kept in the state folder."""

    source: str
    mails: int = 0
    """Enqueued, or waiting to be."""
    complete: str = ""
    """The fingerprint of the source when nothing of it was left to enqueue."""
    enqueued: int = 0
    bytes: int = 0
    """Of the enqueued mails."""
    drained: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def to_drain(self) -> int:
        """The mails of the first slices."""
        share = -(-self.enqueued * _DRAINED_SLICES // _SLICES)
        return max(0, share - self.drained)


class DemoMail:
    """One source of mail and how far it got. Raises CannotStart for one that cannot be read."""

    def __init__(self, stack: StackSettings, source: Path) -> None:
        try:
            if not source.exists():
                raise CannotStart(f"MAIL={source}: no such file or folder. {_REMEDY}")
            self._fingerprints, self._bytes = _fingerprint(source)
        except OSError as error:
            raise CannotStart(
                f"MAIL={source}: {error.filename}: {error.strerror}. {_REMEDY} that this user may "
                "read"
            ) from error
        self._stack = stack
        self._source = source
        self._folder = stack.state / "mail" / hashlib.sha256(os.fsencode(source)).hexdigest()[:16]
        self._waiting = self._folder / "waiting"
        self._known = self._folder / "enqueued"
        self._file = self._folder / "progress.json"
        self.progress = Progress(str(source))
        if self._file.is_file():
            self.progress = Progress(**json.loads(self._file.read_text(encoding="utf-8")))

    @property
    def enqueued(self) -> bool:
        """Whether nothing is left to enqueue."""
        return self.progress.complete == self._fingerprints

    def check_room(self) -> None:
        """Raises CannotStart when the disk of the state folder cannot hold what of this source is
        not in the stores yet.
        """
        folder, free = free_mib(self._stack)
        needed = max(0, self._bytes - self.progress.bytes) // 2**20 + _SPARE_MIB
        if not self.enqueued and free < needed:
            raise CannotStart(
                f"MAIL={self._source}: {folder} has {free} MiB free, {needed} are needed for "
                "it. Remedy: make room, or name fewer mails"
            )

    def spool(self) -> None:
        """Writes each mail of the source that was not enqueued into a file of its own, dealt out
        over the slices in order.
        """
        shutil.rmtree(self._waiting, ignore_errors=True)
        text = self._known.read_text(encoding="ascii") if self._known.is_file() else ""
        known = Counter(text.split())
        skipped = known.total()
        files: list[Path] = []
        self.progress.failures = []
        for number, content in self._contents():
            digest = hashlib.sha256(content).hexdigest()
            if known[digest]:
                known[digest] -= 1
                continue
            self._waiting.mkdir(parents=True, exist_ok=True)
            files.append(self._waiting / f"{number:08d}.eml")
            files[-1].write_bytes(content)
        if not files and not skipped:
            raise CannotStart(f"MAIL={self._source}: no mail was found there. {_REMEDY}")
        for index, file in enumerate(files):
            folder = self._waiting / f"slice-{index * _SLICES // len(files)}"
            folder.mkdir(exist_ok=True)
            file.rename(folder / file.name)
        self.progress.mails = skipped + len(files)
        self.progress.enqueued = skipped
        self._save()

    def enqueue(self, commands: CommandLine, window: str, step: Step) -> None:
        """Enqueues what waits, each group in a slice of its own."""
        seconds = parse_duration(window).total_seconds()
        for folder in sorted(self._waiting.iterdir()) if self._waiting.is_dir() else ():
            time.sleep(seconds - time.time() % seconds + 0.1)
            for line in commands.lines("mail", "enqueue", QUEUE, str(folder)):
                self._enqueued(line)
                step.show(f"{self.progress.enqueued} of {self.progress.mails}")
        self.progress.complete = self._fingerprints
        self._save()
        step.show(f"{self.progress.enqueued} of {self.progress.mails}")

    def drain(self, commands: CommandLine, step: Step) -> None:
        """Takes the mails of the first slices off the queue, as a worker does."""
        if self.progress.to_drain:
            # A wider window hands out the mail whose content is loaded first, not the oldest.
            options = ("--max", str(self.progress.to_drain), "--prefetch", "1")
            for line in commands.lines("worker", "drain", QUEUE, *options):
                if "enqueueId" in line:
                    self.progress.drained += 1
                    step.show(f"{self.progress.drained} completed")
                    self._save()

    def _contents(self) -> Iterator[tuple[int, bytes]]:
        for number, mail in enumerate(read_mails(self._source)):
            if mail.content is None:
                self.progress.failures.append(f"{mail.label}: {mail.error}")
            else:
                yield number, mail.content

    def _enqueued(self, line: dict[str, object]) -> None:
        file = Path(str(line.get("path", "")))
        if "enqueueId" in line:
            content = file.read_bytes()
            with self._known.open("a", encoding="ascii") as known:
                known.write(hashlib.sha256(content).hexdigest() + "\n")
            self.progress.enqueued += 1
            self.progress.bytes += len(content)
        else:
            self.progress.failures.append(f"{file.name}: {line.get('error')}")
        self._save()
        file.unlink(missing_ok=True)

    def _save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._file.with_suffix(".partial")
        scratch.write_text(json.dumps(asdict(self.progress)), encoding="utf-8")
        scratch.replace(self._file)


def source_of(stack: StackSettings, source: str | None, *, from_environment: bool) -> Path:
    """The source that MAIL names; the sample when it names none, or when it is the mailbox that a
    login shell sets it to.
    """
    if not source or (from_environment and source.startswith(("/var/mail/", "/var/spool/mail/"))):
        return stack.root / _SAMPLE
    return Path(source).expanduser().absolute()


def _fingerprint(source: Path) -> tuple[str, int]:
    """Path, names, sizes and times as a digest, which differs for a source that changed; and its
    bytes.
    """
    walked = ((parent, name) for parent, _, names in os.walk(source) for name in names)
    files = [source] if source.is_file() else sorted(Path(*words) for words in walked)
    stats = [(file, file.stat()) for file in files if file.is_file()]
    digest = hashlib.sha256(os.fsencode(source))
    for file, stat in stats:
        digest.update(b"\0" + os.fsencode(file) + f"\0{stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest(), sum(stat.st_size for _, stat in stats)
