"""The command line beside a James: what James wrote is read, what mailslice writes is what James
reads, cleanup harms neither.
"""

import base64
import hashlib
import json
import time

import pytest

from tests.acceptance.command import Cli
from tests.acceptance.james import James

CASES = (
    "minimal",
    "full",
    "null-sender",
    "mime-8bit",
    "mime-folded",
    "mime-empty",
    "mime-no-body",
    "deduplication",
    "generation-aware",
)


def run(env: dict[str, str], *words: str, code: int = 0, stdin: bytes | None = None) -> list[dict]:
    """Runs the command in this process, with only MAILSLICE_* set; its JSON lines."""
    answer = Cli(env).inside()(*words, code=code, stdin=stdin)
    return answer.lines if "--json" in words else [{"stdout": answer.out, "stderr": answer.err}]


@pytest.fixture
def env(fresh):
    return {**fresh.env, "MAILSLICE_QUEUE_SLICE_WINDOW": "1s"}


@pytest.fixture
def james(env):
    Cli(env).inside()("queue", "create", "spool")
    with James(env, "spool") as james:
        yield james


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_what_james_wrote_is_browsed_drained_and_completed(env, james):
    ids = {case: james.write(case, window=1, at_ms=now_ms()) for case in CASES}
    browsed = {line["enqueueId"]: line for line in run(env, "queue", "browse", "spool", "--json")}
    assert set(browsed) == set(ids.values())
    assert browsed[ids["null-sender"]]["sender"] is None
    assert run(env, "queue", "size", "spool", "--json") == [{"queue": "spool", "size": len(CASES)}]
    drained = {
        line["enqueueId"]: line
        for line in run(
            env, "worker", "drain", "spool", "--max", "99", "--outcome", "success", "--json"
        )
    }
    for case in CASES:
        golden, line = james.golden(case), drained[ids[case]]
        content = base64.b64decode(golden["s3"]["header"]["base64"]) + base64.b64decode(
            golden["s3"]["body"]["base64"]
        )
        assert line["sha256"] == hashlib.sha256(content).hexdigest()
        assert (line["name"], line["sender"], line["recipients"], line["state"]) == tuple(
            golden["mail"][key] for key in ("name", "sender", "recipients", "state")
        )
        assert set(line["attributes"]) == set(
            json.loads(base64.b64decode(golden["amqp"]["body_base64"]))["attributes"]
        )
    assert james.marks() == set(ids.values())
    assert james.ready() == 0
    assert run(env, "queue", "size", "spool", "--json") == [{"queue": "spool", "size": 0}]
    kept = {
        golden["s3"][part]["key"]
        for case in ("deduplication", "generation-aware")
        for golden in [james.golden(case)]
        for part in ("header", "body")
    }
    assert james.keys() == kept


def test_what_mailslice_writes_has_the_form_of_the_golden_files(env, james):
    golden = james.golden("minimal")
    content = base64.b64decode(golden["mime_base64"])
    [line] = run(
        env,
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "alice@example.org",
        "--recipient",
        "bob@example.net",
        "--json",
        stdin=content,
    )
    [row] = james.rows()
    assert str(row.enqueueid) == line["enqueueId"]
    assert (row.sender, list(row.recipients), row.name, row.state) == (
        "alice@example.org",
        ["bob@example.net"],
        line["name"],
        "root",
    )
    properties, body = james.take()
    message = json.loads(body)
    assert list(message) == list(json.loads(base64.b64decode(golden["amqp"]["body_base64"])))
    assert (properties.content_type, properties.delivery_mode, properties.priority) == (
        "text/plain",
        2,
        0,
    )
    assert properties.headers["x-dead-letter-routing-key"] == ""
    stored = b"".join(
        james.s3.get_object(Bucket=james.bucket, Key=message[key])["Body"].read()
        for key in ("headerBlobId", "bodyBlobId")
    )
    assert stored == content
    assert (message["headerBlobId"], message["bodyBlobId"]) == (row.headerblobid, row.bodyblobid)
    assert (
        james.start("browseStart")
        == james.start("contentStart")
        == int(row.timerangestart.timestamp() * 1000)
    )


def test_a_mail_that_an_administrator_deleted_is_dropped_at_delivery_and_its_blobs_with_it(
    env, james
):
    kept = james.write("minimal", window=1, at_ms=now_ms(), name="kept")
    james.write("null-sender", window=1, at_ms=now_ms(), name="gone")
    (answer,) = run(env, "queue", "delete", "spool", "--name", "gone", "--yes", "--json")
    assert answer["deleted"] == 1
    drained = run(env, "worker", "drain", "spool", "--max", "5", "--outcome", "success", "--json")
    assert [line["enqueueId"] for line in drained] == [kept]
    assert james.ready() == 0


def test_bad_json_and_lost_content_go_to_the_dead_letters_and_the_next_mail_goes_on(env, james):
    james.publish(b"not a mail", {"x-dead-letter-routing-key": ""})
    lost = james.write("full", window=1, at_ms=now_ms())
    for part in ("header", "body"):
        james.s3.delete_object(Bucket=james.bucket, Key=james.golden("full")["s3"][part]["key"])
    good = james.write("minimal", window=1, at_ms=now_ms())
    assert [
        line["enqueueId"]
        for line in run(
            env, "worker", "drain", "spool", "--max", "1", "--outcome", "success", "--json"
        )
    ] == [good]
    bodies = [james.take(james.dead_letters)[1], james.take(james.dead_letters)[1]]
    assert bodies[0] == b"not a mail"
    assert json.loads(bodies[1])["enqueueId"] == lost


def test_cleanup_empties_dead_slices_around_a_stuck_mail_and_keeps_the_marks_without_a_proof(
    env, james
):
    old = now_ms() - 60_000
    dead = [
        james.write("minimal", window=1, at_ms=old + 1000 * i, name=f"dead-{i}") for i in range(10)
    ]
    stuck = james.write("null-sender", window=1, at_ms=old + 4500, name="stuck")
    for enqueue_id in dead:
        james.mark(enqueue_id)
    [*_, report] = run(
        env,
        "duty",
        "run",
        "queue_cleanup",
        "--queue",
        "spool",
        "--grace",
        "2s",
        "--reason",
        "test",
        "--json",
    )
    in_slice_of_stuck = {str(row.enqueueid) for row in james.rows()} - {stuck}
    stuck_slice = (old + 4500) // 1000 * 1000
    assert stuck in {str(row.enqueueid) for row in james.rows()}
    assert len(in_slice_of_stuck) == sum(
        1 for i in range(10) if (old + 1000 * i) // 1000 * 1000 == stuck_slice
    )
    assert (report["planned"], report["applied"], report["skipped"], report["failed"]) == (
        10 - len(in_slice_of_stuck),
        10 - len(in_slice_of_stuck),
        0,
        0,
    )
    assert james.start("browseStart") == stuck_slice == james.start("contentStart")
    assert james.marks() == set(dead)
    assert report["before"]["live"] == report["after"]["live"] == 1
    assert run(env, "queue", "size", "spool", "--json") == [{"queue": "spool", "size": 1}]
    [again] = run(env, "report", "last", "--duty", "queue_cleanup", "--queue", "spool", "--json")
    assert again == report


def test_an_idle_queue_is_cleaned_to_floor_of_now_minus_grace(env, james):
    old = now_ms() - 60_000
    for i in range(5):
        james.mark(james.write("minimal", window=1, at_ms=old + 1000 * i, name=f"dead-{i}"))
    before = now_ms()
    [*_, report] = run(
        env, "duty", "run", "queue_cleanup", "--queue", "spool", "--grace", "2s", "--json"
    )
    assert report["applied"] == 5
    assert james.rows() == []
    assert before - 3000 <= james.start("browseStart") <= now_ms() - 2000
    assert james.start("browseStart") % 1000 == 0
    assert james.start("contentStart") == james.start("browseStart")
    [*_, report] = run(
        env, "duty", "run", "queue_cleanup", "--queue", "spool", "--grace", "2s", "--json"
    )
    assert (report["planned"], report["applied"]) == (0, 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("queue", "size", "nope"), 2, "spool"),
        (("queue", "delete", "spool", "--yes"), 2, "--sender"),
        (("queue", "delete", "spool", "--name", "x"), 2, "--yes"),
        (("queue", "clear", "spool"), 2, "--yes"),
        (("queue", "browse", "spool", "--older-than", "soon"), 2, "soon"),
        (("duty", "run", "nope", "--queue", "spool"), 2, "queue_cleanup"),
        (("mail", "enqueue", "spool", "/does/not/exist"), 1, "/does/not/exist"),
        (("queue", "siez", "spool"), 2, "siez"),
    ],
)
def test_wrong_use_is_one_or_two_lines_that_name_it(fresh_module, words, code, said):
    cli = Cli(fresh_module.env).inside()
    cli("queue", "create", "spool")
    lines = cli(*words, code=code).err
    assert said in lines
    assert "Traceback" not in lines


@pytest.mark.parametrize(
    "variable", ["MAILSLICE_CASSANDRA_PORT", "MAILSLICE_RABBITMQ_URL", "MAILSLICE_S3_ENDPOINT"]
)
def test_a_store_that_is_down_ends_with_4_and_its_address(env, james, variable):
    down = {
        "MAILSLICE_CASSANDRA_PORT": "9",
        "MAILSLICE_RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:9/%2F",
        "MAILSLICE_S3_ENDPOINT": "http://127.0.0.1:9",
    }
    begun = time.monotonic()
    [out] = run(
        {**env, variable: down[variable]},
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "a@b.c",
        "--recipient",
        "d@e.f",
        code=4,
        stdin=b"Subject: x\r\n\r\nbody",
    )
    assert time.monotonic() - begun < 60
    assert "127.0.0.1:9" in out["stderr"]


def test_a_changed_window_is_refused_with_both_values_until_it_is_applied(env, james):
    other = {**env, "MAILSLICE_QUEUE_SLICE_WINDOW": "3s"}
    [out] = run(other, "queue", "size", "spool", code=3)
    assert "3s" in out["stderr"]
    assert "1s" in out["stderr"]
    assert "config apply" in out["stderr"]
    [out] = run(other, "config", "apply", code=3)
    run({**env, "MAILSLICE_QUEUE_BUCKET_COUNT": "4"}, "config", "apply")
    assert run(
        {**env, "MAILSLICE_QUEUE_BUCKET_COUNT": "4"}, "queue", "size", "spool", "--json"
    ) == [{"queue": "spool", "size": 0}]
    run({**env, "MAILSLICE_QUEUE_BUCKET_COUNT": "2"}, "config", "check", code=1)
