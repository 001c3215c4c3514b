"""Wrong use, help and start-up: what the command line answers before it touches a store."""

import io
import json
import resource
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from mailslice import __version__
from mailslice.cli import main
from mailslice.cli.main import run
from mailslice.cli.queue_session import who
from mailslice.maintenance.artifacts import folder_of
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model.settings import load_settings
from mailslice.webadmin.in_process import TASKS_FOLDER

MAILSLICE = Path(sys.executable).with_name("mailslice")
HEAVY = (
    "pyspark",
    "airflow",
    "great_expectations",
    "cassandra",
    "pika",
    "obstore",
    "boto3",
    "pandas",
    "matplotlib",
    "rich.table",
    "uvloop",
)


def call(*words: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MAILSLICE), *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=stdin,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["queue", "--help"],
        ["queue", "delete", "--help"],
        ["duty", "run", "--help"],
        ["quue"],
        ["queue", "brows"],
        ["report", "last", "--duty", "nope"],
    ],
)
def test_help_and_a_wrong_word_import_nothing_heavy(words):
    code = f"""
import sys
from mailslice.cli.main import run
rc = run({words!r})
print(rc, [name for name in {HEAVY!r} if name in sys.modules])
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == f"{0 if '--help' in words else 2} []"


@pytest.mark.parametrize("words", [["--help"], ["mail", "enqueue", "--help"], ["wrong"]])
def test_help_and_a_wrong_word_answer_in_under_a_second(words):
    """Of processor time, when others have the machine: they wait for nothing but it."""
    times = []
    while len(times) < 10 and not any(each < 1 for each in times):
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        call(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append(min(time.perf_counter() - start, used))
    assert min(times) < 1


def test_a_wrong_word_names_the_nearest_right_one_in_two_lines():
    answer = call("queue", "brows")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        "mailslice: No such command 'brows'. Did you mean 'browse'?\nSee 'mailslice queue "
        "--help'.\n"
    )


def test_every_command_takes_json_and_debug_after_its_name():
    import typer.main

    def leaves(command, path=()):
        if not hasattr(command, "commands"):
            yield path, {option for parameter in command.params for option in parameter.opts}
            return
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))

    found = dict(leaves(typer.main.get_command(main.app)))
    assert len(found) > 20
    assert [path for path, options in found.items() if not {"--json", "--debug"} <= options] == []


WRONG = {
    "queue delete spool --json": "--sender, --recipient, --name",
    "queue delete spool --older-than 1h --yes": "--sender, --recipient, --name",
    "queue delete spool --name x": "--yes",
    "queue clear spool": "--yes",
    "queue move spool out": "--yes",
    "queue delay spool --for 1h": "--yes",
    "queue browse spool --limit 0": "--limit: '0' is not allowed; a whole number from 1",
    "queue browse spool --limit -3": "--limit: '-3' is not allowed",
    "queue browse spool --limit 99999999999999999999999": (
        "--limit: '99999999999999999999999' is not allowed"
    ),
    "queue browse spool --limit ten": "--limit: 'ten' is not allowed",
    "queue delete spool --domain a.example --domain b.example --yes": (
        "--domain: given twice; allowed: once"
    ),
    "queue delete spool --name a --older-than 1h --older-than 2h --yes": "--older-than: given tw",
    "queue export spool . --sender a@b.example --sender <>": "--sender: given twice",
    "queue undelete spool --run a --run b --yes": "--run: given twice; allowed: once",
    "blobs restore --run a --run b": "--run: given twice; allowed: once",
    "stuck release spool --name a --name b": "--name: given twice; allowed: once",
    "stuck discard spool --name a --name b --yes": "--name: given twice; allowed: once",
    "duty run queue_cleanup --queue a --queue b": "--queue: given twice; allowed: once",
    "duty apply blob_gc --run a --run b": "--run: given twice; allowed: once",
    "queue browse spool --older-than yesterday": (
        "--older-than: 'yesterday' is not a duration; allowed: a number with ms, s, m, h, d or w"
    ),
    "queue browse spool --older-than -5s": "--older-than: '-5s' is not a duration",
    "queue browse spool extra": "unexpected extra argument",
    "queue browse spool --due-before 0001-01-01T00:00:00+14:00": (
        "--due-before: '0001-01-01T00:00:00+14:00' is not a time; allowed: 2026-11-23T10:00:00Z"
    ),
    "decisions list --since 2999-01-01": "--since 2999-01-01T00:00:00Z is after --until or now",
    "mail trace x --log /\udcff": "--log '/\\udcff': No such file",
    "decisions list --until 9999-12-31T23:59:59-12:00": "--until: '9999-12-31T23:59:59-12:00' is",
    "queue export spool ": "DIR: '' is not allowed; the path of a folder is",
    "postal quarantine export ": "DIR: '' is not allowed",
    "mail trace x --log /nowhere": (
        "--log '/nowhere': No such file or directory; allowed: a file with a log, or -"
    ),
    "queue browse spool --sender a@b@c": (
        "--sender: 'a@b@c' is not a mail address; allowed: local@domain"
    ),
    "queue delete spool --yes --sender ": "--sender: '' is not a sender; allowed: local@domain",
    "queue browse a/b": "queue name 'a/b': allowed are 1 to 200 bytes",
    "queue hold spool": "--reason",
    "queue hold spool --reason ": "--reason",
    "queue size \udcff": "queue name '\\udcff': allowed are 1 to 200 bytes of UTF-8",
    "queue browse spool --name \udcff": "name: '\\udcff' is not allowed; text in UTF-8 is",
    "mail enqueue spool x.eml --reason \udcff": (
        "reason: '\\udcff' is not allowed; text in UTF-8 is"
    ),
    "report show \udcff": "run: '\\udcff' is not allowed",
    "duty run queue_audit --queue spool --older-than \udcff": (
        "--older-than: '\\udcff' is not allowed"
    ),
    "queue size": "QUEUE",
    "mail show spool": "either --name or --id",
    "mail show spool --name a --id 00000000-0000-0000-0000-000000000000": "either --name or --id",
    "mail show spool --name a --raw --json": "mail show: give either --raw or --json",
    "mail show spool --id 7": "--id: '7' is not an enqueue id; allowed: a UUID",
    "mail enqueue spool": "PATH",
    "mail enqueue spool x.eml --recipient nobody@": "--recipient: 'nobody@' is not a mail address",
    "mail enqueue spool x.eml --delay 5000000d": (
        "--delay: '5000000d' is not allowed; at most 30d is"
    ),
    "duty plan queue_cleanup --queue spool --grace 5000000d": (
        "grace='5000000d': allowed: 0s or more, at most 36500d"
    ),
    "duty run counter_repair --users ": (
        "--users: it was given and names nothing; allowed is at least one name"
    ),
    "duty plan counter_repair --mailboxes ,": "--mailboxes: it was given and names nothing",
    "duty plan blob_gc --param grace=2d --param grace=1d": (
        "--param grace: it was given as '2d' and '1d'; allowed is one of them"
    ),
    "duty plan counter_repair --param users=": "--users: it was given and names nothing",
    "duty plan dead_letters --queue spool --redrive --name ": "--name: it was given and names",
    "duty plan dead_letters --queue spool --redrive --sender ": "--sender: it was given and names",
    "duty plan dead_letters --queue spool --param sender=": "--sender: it was given and names noth",
    'duty run queue_audit --queue spool --param reason="\\ud800"': (
        "--param reason: '\\ud800' is not allowed; text in UTF-8 is"
    ),
    "duty plan blob_gc --run ": "run id '': allowed are 1 to 180 letters",
    "duty apply blob_gc --run ": "run id '': allowed are 1 to 180 letters",
    "duty run --grace 2s nope": "duty 'nope' is not known; known: blob_gc, ",
    "duty plan --dry-run nope --queue spool": "duty 'nope' is not known; known: blob_gc, ",
    "bench hotpath --load 2": "--load: '2' is not allowed; a share from 0 to 1 is",
    "bench hotpath --processes 1,0": "--processes: '0' is not allowed; a whole number from 1 to 64",
    "worker top a/b": "queue name 'a/b'",
    "worker top --interval soon": "--interval: 'soon' is not a duration",
    "bench hotpath --size 3G": "--size: '3G' is not allowed; a size from 1",
    "report list --limit 0": "--limit: '0' is not allowed",
    "worker drain spool --max 0": "--max: '0' is not allowed",
    "worker drain spool --outcome maybe": "Invalid value for '--outcome': 'maybe' is not one of",
    "worker drain spool --idle soon": "--idle: 'soon' is not a duration",
    "worker drain spool --prefetch 70000": (
        "--prefetch: '70000' is not allowed; a whole number from 1 to 65535"
    ),
    "worker run --queue spool": "--handler",
    "worker smtp-in --queue spool --host ": (
        "--host: '' is not allowed; an address is, such as 127.0.0.1, or 0.0.0.0 for all"
    ),
    "webadmin --host ": "--host: '' is not allowed; an address is",
    "webadmin --host \t": "--host: '\\t' is not allowed",
    "exporter --port 0 --host ": "--host: '' is not allowed; an address is",
    "exporter --port 0 --interval 0s": "--interval: '0s' is not allowed; at least 1s is",
    "exporter --port 0 --interval 999ms": "--interval: '999ms' is not allowed; at least 1s is",
    "worker run --queue spool --handler nothing --processes 0": "--processes: '0' is not allowed",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use_exits_2_and_names_what_is_allowed(line, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(line.split(" ")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert WRONG[line] in captured.err
    assert len(captured.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["queue", "size", "x" * 70_000], "allowed are 1 to 200 bytes of UTF-8"),
        (
            ["duty", "run", "queue_audit", "--param", f"older_than={'[' * 60_000}"],
            "' is not a duration; allowed: a number with ms",
        ),
    ],
    ids=("queue", "param"),
)
def test_of_a_long_input_the_beginning_is_shown_and_what_is_allowed(words, says, capsys):
    assert run(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mailslice: {'queue name' if words[0] == 'queue' else 'duty'} ")
    assert says in said
    assert len(said) < 2100


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MAILSLICE_CASSANDRA_PORT", "x", "MAILSLICE_CASSANDRA_PORT='x'"),
        ("MAILSLICE_QUEUE_TABLE", "v5", "v3"),
        (
            "MAILSLICE_S3_SECRET_KEY",
            "se\udcffcret",
            "MAILSLICE_S3_SECRET_KEY=*** (in the environment): allowed: text in UTF-8",
        ),
        ("MAILSLICE_CASSANDRA_CONSISTENCY", "ONE", "LOCAL_QUORUM"),
        ("MAILSLICE_QUEUE_SLICE_WINDOW", "fortnight", "'fortnight'"),
        (
            "MAILSLICE_RABBITMQ_URL",
            "amqp://guest:se#cret@h/x",
            "MAILSLICE_RABBITMQ_URL is not a URL",
        ),
        (
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL",
            "http://guest:se/cret@h",
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL is not a URL",
        ),
        (
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL",
            "http://guest:secret@[::1",
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL is not a URL",
        ),
        (
            "MAILSLICE_S3_ENDPOINT",
            "ftp://key:secret@h",
            (
                "MAILSLICE_S3_ENDPOINT='ftp://h' (in the environment): allowed: http:// or "
                "https://host:port"
            ),
        ),
        (
            "MAILSLICE_S3_ENDPOINT",
            "key:secret@h",
            "MAILSLICE_S3_ENDPOINT='h' (in the environment): allowed: http:// or https://host:port",
        ),
        ("MAILSLICE_S3_ENDPOINT", "key:s@cret@h:9000/x", "MAILSLICE_S3_ENDPOINT='h:9000/x'"),
        ("MAILSLICE_S3_ENDPOINT", "secret@http://h", "MAILSLICE_S3_ENDPOINT='h'"),
        (
            "MAILSLICE_RABBITMQ_URL",
            "secret:x@h",
            "MAILSLICE_RABBITMQ_URL has scheme '' and host None",
        ),
        (
            "MAILSLICE_RABBITMQ_URL",
            "u:secret@h",
            "MAILSLICE_RABBITMQ_URL has scheme '' and host None",
        ),
        (
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL",
            "secret:x@h",
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL has scheme '' and host None",
        ),
        (
            "MAILSLICE_RELAY_HOST",
            "u:secret@h",
            (
                "MAILSLICE_RELAY_HOST='***@h' (in the environment): allowed: host names and "
                "addresses, without a user"
            ),
        ),
        (
            "MAILSLICE_CASSANDRA_CONTACT_POINTS",
            "a,u:secret@h",
            "MAILSLICE_CASSANDRA_CONTACT_POINTS='***@h' (in the environment): allowed: host names",
        ),
        ("MAILSLICE_CASSANDRA_PORT", "u:secret@9042", "MAILSLICE_CASSANDRA_PORT='***@9042'"),
        ("MAILSLICE_QUEUE_BUCKETCOUNT", "2", "Did you mean MAILSLICE_QUEUE_BUCKET_COUNT?"),
        ("MAILSLICE_S3_ACCESS_KEY", "a", "MAILSLICE_S3_ACCESS_KEY and _SECRET_KEY: allowed is bo"),
        ("MAILSLICE_S3_SECRET_KEY", "secret", "MAILSLICE_S3_SECRET_KEY=*** (in the environment)"),
        *(
            (variable, value.format(host), words)
            for host in ("a..b", f"{'x' * 64}.example")
            for variable, value, words in (
                ("MAILSLICE_CASSANDRA_CONTACT_POINTS", "a,{}:9042", "MAILSLICE_CASSANDRA_CONTACT_"),
                ("MAILSLICE_RELAY_HOST", "{}", "allowed: 1 to 63 characters between the dots"),
                ("MAILSLICE_SMTP_IN_HOST", "{}", "MAILSLICE_SMTP_IN_HOST="),
                ("MAILSLICE_RABBITMQ_URL", "amqp://u:secret@{}", "MAILSLICE_RABBITMQ_URL is not"),
                (
                    "MAILSLICE_RABBITMQ_MANAGEMENT_URL",
                    "http://u:secret@{}",
                    "MAILSLICE_RABBITMQ_MANAGEMENT_URL is not a URL",
                ),
                ("MAILSLICE_S3_ENDPOINT", "http://{}:9000", "MAILSLICE_S3_ENDPOINT='http://"),
            )
        ),
    ],
)
def test_a_bad_setting_exits_2_and_names_variable_and_value(
    variable, value, words, capsys, monkeypatch
):
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr("mailslice.model.settings.STATE_FILE", "none")  # of a `make run`
    assert run(["queue", "size", "x"] if "RABBITMQ_URL" in variable else ["queue", "list"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "cret" not in captured.err
    assert len(captured.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MAILSLICE_S3_ENDPOINT", "http://minio_server:9000"),
        ("MAILSLICE_S3_REGION", "eu-west-1 "),
    ],
)
def test_a_client_of_s3_that_cannot_be_made_is_a_bad_setting(variable, value, capsys, monkeypatch):
    monkeypatch.setenv("MAILSLICE_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MAILSLICE_S3_ACCESS_KEY", "key")
    monkeypatch.setenv("MAILSLICE_S3_SECRET_KEY", "secret")
    monkeypatch.setenv(variable, value)
    assert run(["blobs", "kept"]) == 2
    said = capsys.readouterr().err
    assert variable in said
    assert value in said


def test_to_look_at_a_setting_needs_no_reason(capsys, monkeypatch):
    monkeypatch.setenv("MAILSLICE_ADMIN_REASON_REQUIRED", "true")
    monkeypatch.setenv("MAILSLICE_CASSANDRA_CONTACT_POINTS", "127.0.0.1:1")
    assert run(["config", "shared"]) == 4
    assert "Cassandra at 127.0.0.1:1" in capsys.readouterr().err
    assert run(["config", "shared", "true"]) == 2
    assert "config shared: give --reason TEXT" in capsys.readouterr().err


def test_a_step_of_a_run_that_was_never_planned_is_refused_and_not_in_the_ledger(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("MAILSLICE_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv("MAILSLICE_CASSANDRA_CONTACT_POINTS", "127.0.0.1:1")
    for step in ("check", "apply", "verify", "report"):
        assert run(["duty", step, "blob_gc", "--run", "mistyped"]) == 3
        assert "run mistyped of blob_gc has no plan.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("duty", "variable", "value"),
    [
        ("blob_gc", "MAILSLICE_POSTAL_URL", "mysql://guest@127.0.0.1:1/postal"),
        ("stuck_mails_postal", "MAILSLICE_CASSANDRA_CONTACT_POINTS", "127.0.0.1:1"),
    ],
)
def test_a_duty_of_a_store_that_the_settings_do_not_name_leaves_no_failed_run(
    duty, variable, value, capsys, monkeypatch, tmp_path
):
    """It would stay the newest run of that duty, and its alert would fire, for the retention."""
    monkeypatch.setenv("MAILSLICE_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv(variable, value)
    assert run(["duty", "run", duty]) == 2
    assert "MAILSLICE_POSTAL_URL" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["applied.json", "progress.json"])
def test_a_run_that_changed_something_is_not_made_a_dry_run_afterwards(
    file, capsys, monkeypatch, tmp_path
):
    """Its report replaced the ledger's row: nothing was changed."""
    monkeypatch.setenv("MAILSLICE_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv("MAILSLICE_CASSANDRA_CONTACT_POINTS", "127.0.0.1:1")
    folder = folder_of(RunRequest("blob_gc", NO_QUEUE, "r1"), load_settings())
    folder.write_json("request.json", {"params": {"dry_run": True}})
    folder.write_json(file, {"applied": 7})
    for step in ("apply", "verify", "report"):
        assert run(["duty", step, "blob_gc", "--run", "r1", "--dry-run"]) == 2
        assert "--dry-run: run r1 was applied" in capsys.readouterr().err


def test_the_list_of_duties_shows_defaults_as_they_are_typed(capsys):
    assert run(["duty", "list"]) == 0
    shown = capsys.readouterr().out
    assert "grace: blobs younger than this are left alone" in shown
    assert "(90s, 15m, 24h) (default 1d)" in shown
    assert "dry_run: plan and check only: nothing is changed (default no)" in shown
    assert not any(word in shown for word in ("day, 0:00:00", "None", "False", "()"))


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("MAILSLICE_CASSANDRA_PORT", "x")
    assert run(["queue", "list", "--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_user_whose_name_is_no_text_has_one_that_stores_keep(monkeypatch):
    monkeypatch.setenv("LOGNAME", "jo\udcff")
    assert who() == f"jo?@{socket.gethostname()}"


def test_ctrl_c_exits_130(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("mailslice.cli.queue_session.load_settings", interrupted)
    assert run(["queue", "list"]) == 130


def test_a_bug_is_called_a_bug_and_exits_1(capsys, monkeypatch):
    def broken():
        raise ZeroDivisionError("seven \x1b[31m")

    monkeypatch.setattr("mailslice.cli.queue_session.load_settings", broken)
    assert run(["queue", "list"]) == 1
    assert capsys.readouterr().err == (
        "mailslice: ZeroDivisionError: seven \\x1b[31m (this is a bug of mailslice; "
        "--debug shows where)\n"
    )


def test_of_a_bug_in_a_worker_of_spark_the_last_line_of_its_traceback_is_said(capsys, monkeypatch):
    def broken():
        raise RuntimeError(
            "\n  An exception was thrown from the Python worker.\nTraceback (most recent "
            "call last):\n  File \"x.py\"\nNameError: name 'x' is not defined\n"
        )

    monkeypatch.setattr("mailslice.cli.queue_session.load_settings", broken)
    assert run(["queue", "list"]) == 1
    said = "An exception was thrown from the Python worker. ... NameError: name 'x' is not defined"
    assert (
        capsys.readouterr().err
        == f"mailslice: RuntimeError: {said} (this is a bug of mailslice; --debug shows where)\n"
    )


def test_version():
    answer = call("--version")
    assert (answer.returncode, answer.stdout) == (0, f"mailslice {__version__}\n")


def test_config_needs_no_terminal_and_json_goes_with_errors_on_stderr_only(monkeypatch, capsys):
    monkeypatch.setenv("MAILSLICE_CASSANDRA_PORT", "x")
    assert run(["config", "show", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    with pytest.raises(json.JSONDecodeError):
        json.loads(captured.err)


def test_webadmin_says_on_stderr_what_goes_wrong_with_the_time(tmp_path):
    tasks = tmp_path / TASKS_FOLDER
    tasks.mkdir(parents=True)
    (tasks / "cut-short.json").write_text("{")
    env = {"MAILSLICE_ARTIFACTS": str(tmp_path), "MAILSLICE_WEBADMIN_TOKEN": "t" * 40}
    words = [str(MAILSLICE), "webadmin", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=env, cwd="/", text=True, **pipes) as process:
        assert process.stdout.readline().startswith("webadmin on http://127.0.0.1:")
        process.terminate()
        _, said = process.communicate(timeout=30)
    (line,) = said.splitlines()
    time_of_day, problem = line.split(" WARNING ")
    assert datetime.fromisoformat(time_of_day.replace(",", "."))
    assert problem.endswith("cut-short.json is no task and is left out")
