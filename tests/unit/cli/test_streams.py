"""Standard streams as service managers and shells leave them: closed, full, read by nobody."""

import io
import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import mailslice
from mailslice.cli.streams import StoppedError, stoppable

MAILSLICE = Path(sys.executable).with_name("mailslice")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """`$M` is the command. What it prints on a stream that is not redirected is given back."""
    return subprocess.run(
        ["/bin/bash", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"M": str(MAILSLICE)},
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        (
            "$M queue clear spool --json <&-",
            2,
            "",
            "mailslice: queue clear asks first, and there is no terminal to ask on: give --yes",
        ),
        ("$M queue brows 2>&-", 2, "", ""),
        ("$M queue brows 2>/dev/full", 2, "", ""),
        ("set -o pipefail; (sleep 0.1; exec $M queue brows) 2>&1 >/dev/null | true", 2, "", ""),
        ("$M duty list >&-", 0, "", ""),
        (
            "$M duty list --json >/dev/full",
            1,
            "",
            "mailslice: stdout cannot be written to: No space left on device",
        ),
        ("$M queue --help >/dev/full", 1, "", "mailslice: stdout: No space left on device"),
        (
            r"printf '\xff\n' | PYTHONIOENCODING=utf-8:strict $M queue delete spool --yes --id -",
            2,
            "",
            r"mailslice: --id -: line 1: '\\xff' is not an enqueue id",
        ),
        ("set -o pipefail; (sleep 0.1; exec $M --help) | true", 141, "", ""),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_bug_and_sends_nothing_to_another(
    line, code, out, err
):
    answer = shell(line)
    assert (answer.returncode, answer.stdout) == (code, out)
    assert answer.stderr.startswith(err)
    assert len(answer.stderr.splitlines()) == bool(err)


def test_the_processes_of_a_command_without_streams_have_some(tmp_path):
    """A worker's process without stdout could not start."""
    child = tmp_path / "child.py"
    child.write_text("import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))")
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys\n"
        "from mailslice.cli.streams import open_streams\n"
        "open_streams()\n"
        f"sys.exit(subprocess.call([sys.executable, {str(child)!r}]))\n"
    )
    line = f"{sys.executable} {script} <&- >&- 2>&-"
    env = {"PYTHONPATH": str(Path(mailslice.__file__).parents[1])}
    assert subprocess.run(["/bin/bash", "-c", line], check=False, env=env).returncode == 0


def test_a_terminal_whose_width_nobody_knows_shows_tables():
    ours, terminal = pty.openpty()
    env = {"COLUMNS": "0", "TERM": "xterm"}
    with subprocess.Popen([MAILSLICE, "duty", "list"], stdout=terminal, env=env, cwd="/") as shown:
        os.close(terminal)
        first = os.read(ours, 1000)
        with suppress(OSError):  # Linux' end of a terminal
            while os.read(ours, 65536):
                pass
    os.close(ours)
    assert (b"duty" in first, shown.returncode) == (True, 0)


def test_a_table_whose_words_do_not_fit_a_narrow_terminal_cuts_no_id():
    row = {f"column{number}": f"590a9eeb-c725-43ce-b858-e60495c25b9{number}" for number in range(4)}
    code = f"from mailslice.cli.output import Output; Output().rows([{row!r}])"
    ours, terminal = pty.openpty()
    env = {"COLUMNS": "60", "TERM": "xterm", "PYTHONPATH": str(Path(mailslice.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], stdout=terminal, env=env, check=True)
    os.close(terminal)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "   ".join(row.values()) in shown


def test_a_stream_that_can_be_stopped_gives_all_bytes_of_files_pipes_and_memory(tmp_path):
    content = bytes(range(256)) * 2000
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        assert stoppable(file, threading.Event()).read() == content
    with Path(os.devnull).open("rb") as nothing:
        assert stoppable(nothing, threading.Event()).read() == b""
    assert stoppable(io.BytesIO(content), threading.Event()).read() == content
    with subprocess.Popen(["/bin/cat", str(tmp_path / "file")], stdout=subprocess.PIPE) as cat:
        stream = stoppable(cat.stdout, threading.Event())
        assert stream.readline() + stream.read() == content


def test_a_read_that_waits_ends_when_it_is_told_to_stop():
    reader, writer = os.pipe()
    stop, ended = threading.Event(), threading.Event()

    def read():
        with pytest.raises(StoppedError):
            stoppable(stream, stop).readline()
        ended.set()

    with os.fdopen(reader, "rb") as stream:
        os.write(writer, b"half a line")
        threading.Thread(target=read, daemon=True).start()
        assert not ended.wait(0.2)
        stop.set()
        assert ended.wait(60)
    os.close(writer)


def test_json_and_debug_may_come_first_or_after_the_group():
    for words in (
        ["--json", "duty", "list"],
        ["duty", "--json", "list"],
        ["--debug", "duty", "--debug", "list", "--json"],
    ):
        lines = [json.loads(line) for line in _inside(words).splitlines()]
        assert {"queue_cleanup", "blob_gc"} < {line["duty"] for line in lines}


def _inside(words):
    import contextlib
    import io

    from mailslice.cli.main import run

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run(words) == 0
    return out.getvalue()
