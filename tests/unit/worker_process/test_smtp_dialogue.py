"""One SMTP transaction over a fake socket: scripted answers, recorded commands and time-outs."""

from __future__ import annotations

import io
import smtplib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.codec.reports import Failure
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import Settings
from mailslice.worker.handlers import smtp_dialogue
from mailslice.worker.handlers.next_hop import Connection, NextHop, StaleConnection
from mailslice.worker.handlers.relay import Relay
from mailslice.worker.handlers.smtp_dialogue import Stopping, Timeouts, Transaction, send
from mailslice.worker.handlers.smtp_refusals import Refusals
from mailslice.worker.handlers.smtp_wire import Body
from mailslice.worker.outcome import Complete, Retry
from mailslice.worker.stages.handler_stage import BlockingStage

A, B, C = "a@x", "b@x", "c@x"
CONTENT = b"Subject: x\r\n\r\nbody\r\n"
OK, GO = b"250 ok\r\n", b"354 go on\r\n"


@dataclass
class FakeSocket:
    """Records what is sent, and the time-outs. `sendall` fails from the `fails_at`th call on."""

    sent: list[bytes] = field(default_factory=list)
    timeouts: list[tuple[int, float]] = field(default_factory=list)
    fails_at: int = 10**9
    closed: bool = False

    def sendall(self, data: Any) -> None:
        if len(self.sent) >= self.fails_at:
            raise ConnectionResetError
        self.sent.append(bytes(data))

    def gettimeout(self) -> float:
        return self.timeouts[-1][1]

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append((len(self.sent), seconds))

    def close(self) -> None:
        self.closed = True


class Replies(io.BytesIO):
    """Replies, each of which comes when it is read, or `early`."""

    raw = SimpleNamespace()

    def __init__(self, replies: bytes, *, early: bool = False) -> None:
        super().__init__(replies)
        self.early = early

    def peek(self) -> bytes:
        if not self.early:
            raise BlockingIOError
        return self.getvalue()[self.tell() :]


@dataclass
class Told(BlockingStage):
    """Remembers its marks."""

    attempt: int = 1
    marks: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def sending(self, recipients: Iterable[str] | None = None) -> None:
        self.marks.append(("sending", tuple(recipients or ())))

    def sent(self, recipients: Iterable[str] | None = None) -> None:
        self.marks.append(("sent", tuple(recipients or ())))

    def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        self.marks.append(("not sent", tuple(recipients or ())))


@dataclass
class Dialogue:
    """What came of one transaction."""

    socket: FakeSocket
    refused: Refusals
    stage: Told
    broken: bool
    connection: Connection
    server: smtplib.SMTP

    @property
    def commands(self) -> list[str]:
        return b"".join(self.socket.sent).decode().split("\r\n")


def talk(
    *answers: bytes,
    to: tuple[str, ...] = (A,),
    content: bytes = CONTENT,
    sender: str | None = "s@x",
    features: tuple[str, ...] = (),
    **given: Any,
) -> Dialogue:
    after = given.pop("after", None)
    server = after.server if after else smtplib.SMTP(local_hostname="me")
    wire = given.pop("socket", None) or FakeSocket()
    server.sock, server.file = wire, given.pop("replies", None) or Replies(b"".join(answers))
    server.does_esmtp, server.esmtp_features = True, dict.fromkeys(features, "")
    connection = after.connection if after else Connection(server)
    made = Dialogue(
        wire,
        Refusals(),
        given.pop("stage", Told()),
        broken=False,
        connection=connection,
        server=server,
    )
    limits = {
        name: given.pop(name)
        for name in ("stopping", "begin_within", "send_within")
        if name in given
    }
    timeouts = Timeouts(60, 600, **limits)
    try:
        send(
            connection,
            sender,
            Transaction(to, **given),
            Body.of(content),
            refused=made.refused,
            stage=made.stage,
            timeouts=timeouts,
        )
    except (OSError, smtplib.SMTPException):
        made.broken = True
    return made


BEGUN, SENT, NOT_SENT = ("sending", (A,)), ("sent", (A,)), ("not sent", (A,))


@pytest.mark.parametrize("last", [b"250 ok", b"251 forwarded", b"252 who knows", b"299 fine"])
@pytest.mark.parametrize("rcpt", [b"250 ok", b"251 not here", b"252 cannot verify", b"200 yes"])
def test_the_first_digit_says_that_a_mail_was_taken(rcpt: bytes, last: bytes) -> None:
    done = talk(b"251 ok\r\n", rcpt + b"\r\n", GO, last + b"\r\n")
    expected = ([BEGUN, SENT], Refusals(accepted=last.decode()), False)
    assert (done.stage.marks, done.refused, done.broken) == expected


@pytest.mark.parametrize(
    "answer", [b"250 ok", b"200 ok", b"350 go", b"garbage", b"101 wait", b"600 what", b"", b"25 o"]
)
def test_nothing_but_354_lets_the_mail_go_and_nothing_but_a_refusal_is_one(answer: bytes) -> None:
    done = talk(OK, OK, answer + b"\r\n", OK)
    assert (done.stage.marks, done.broken, done.socket.closed) == ([], True, True)
    assert b"Subject" not in b"".join(done.socket.sent)
    assert not done.refused.for_good


def test_answers_that_are_out_of_step_are_not_taken_for_the_mails() -> None:
    """smtplib does not end a reply at a broken line.

    What follows would be the answer to the next command, and the last RCPT's 250 that to DATA.
    """
    done = talk(OK, b"no code here\r\n250 ok\r\n", OK, GO, OK, to=(A, B))
    assert (done.stage.marks, done.broken, done.socket.closed) == ([], True, True)
    twice = talk(OK, OK + OK, GO, OK)
    assert (twice.stage.marks, twice.broken) == ([], True)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(b"452 full", 452), (b"554 spam", 554), (b"499 x", 499), (b"421 closing", 421)],
)
def test_after_the_dot_a_refusal_is_certain(answer: bytes, code: int) -> None:
    done = talk(OK, OK, GO, answer + b"\r\n")
    assert (done.stage.marks, done.broken) == ([BEGUN, NOT_SENT], False)
    assert done.refused.for_now | done.refused.for_good == {A: code}


@pytest.mark.parametrize(
    "answer", [b"", b"garbage\r\n", b"354 go on\r\n", b"099 x\r\n", b"250" + b"x" * 9000 + b"\r\n"]
)
def test_after_the_dot_what_is_no_answer_leaves_the_mail_in_doubt(answer: bytes) -> None:
    done = talk(OK, OK, GO, answer)
    assert (done.stage.marks, done.broken) == ([BEGUN], True)
    assert A not in done.refused


@pytest.mark.parametrize("answer", [b"452 full", b"554 spam"])
def test_a_refusal_of_data_is_certain_and_keeps_the_connection(answer: bytes) -> None:
    done = talk(OK, OK, answer + b"\r\n")
    assert (done.stage.marks, done.broken, done.socket.closed) == ([], False, False)
    assert done.refused.words == {A: answer[4:].decode()}


def test_a_server_that_closes_has_said_so_to_the_one_it_was_asked_about() -> None:
    done = talk(OK, b"450 4.2.0 greylisted\r\n", b"421 4.3.2 closing\r\n", to=(A, B, C))
    assert (done.refused.for_now, done.broken, done.socket.closed) == ({A: 450, B: 421}, True, True)
    assert done.refused.failure(B).diagnostic == "421 4.3.2 closing"


@pytest.mark.parametrize("closing", [b"421 closing\r\n", b""])
def test_a_connection_that_ends_at_data_has_sent_nothing(closing: bytes) -> None:
    done = talk(OK, OK, closing)
    assert (done.stage.marks, done.broken) == ([], True)


def test_a_large_mail_goes_in_pieces_and_its_answer_may_take_ten_minutes() -> None:
    content = b"S: x\r\n\r\n" + b".line\r\n" * 50_000
    done = talk(OK, OK, GO, OK, content=content)
    pieces = done.socket.sent[3:]
    assert b"".join(pieces) == content.replace(b"\n.", b"\n..") + b".\r\n"
    assert max(map(len, pieces)) < 80 * 1024, "a time-out is for each"
    assert done.socket.timeouts[-2:] == [(len(done.socket.sent), 600), (len(done.socket.sent), 60)]
    assert done.stage.marks == [BEGUN, SENT]


@pytest.mark.parametrize(
    ("early", "marks", "codes"),
    [(OK, [BEGUN, NOT_SENT], {}), (b"552 large\r\n", [BEGUN, NOT_SENT], {A: 552})],
)
def test_a_reply_before_the_last_byte_is_sent_is_no_answer_to_the_mail_unless_it_refuses_it(
    early: bytes, marks: list[Any], codes: dict[str, int]
) -> None:
    done = talk(replies=Replies(OK + OK + GO + early, early=True))
    assert (done.stage.marks, done.refused.for_good) == (marks, codes)
    assert (done.broken, done.socket.closed) == (not codes, True)
    assert b"\r\n.\r\n" not in b"".join(done.socket.sent)


def test_a_connection_that_breaks_within_the_mail_has_sent_nothing() -> None:
    done = talk(OK, OK, GO, content=b"x" * 200_000, socket=FakeSocket(fails_at=5))
    assert (len(done.socket.sent), done.stage.marks, done.broken) == (5, [BEGUN, NOT_SENT], True)


def test_a_mail_that_is_not_sent_whole_in_time_is_sent_later() -> None:
    class Slowly(Told):
        def sending(self, recipients: Iterable[str] | None = None) -> None:
            super().sending(recipients)
            time.sleep(0.2)

    done = talk(OK, OK, GO, OK, send_within=0.2, stage=Slowly())
    assert (done.stage.marks, done.broken) == ([BEGUN, NOT_SENT], True)


def test_recipients_for_whom_there_is_no_time_are_left_for_later_and_one_is_always_served() -> None:
    done = talk(OK, b"450 later\r\n", OK, GO, OK, to=(A, B, C), begin_within=-1.0)
    assert done.stage.marks == [("sending", (B,)), ("sent", (B,))]
    assert (done.refused.for_now, done.refused.unnamed) == ({A: 450}, [C])


PIPELINED: dict[str, Any] = {"features": ("pipelining",)}


class Slow(Replies):
    """Replies of which each takes 50 ms; `at_reply` is called with the number of each."""

    replies = 0

    def __init__(self, replies: bytes) -> None:
        super().__init__(replies)
        self.at_reply: Callable[[int], None] = lambda _number: None

    def readline(self, size: int | None = -1, /) -> bytes:
        time.sleep(0.05)
        self.replies += 1
        self.at_reply(self.replies)
        return super().readline(size)


@pytest.mark.parametrize("features", [(), ("pipelining",)])
def test_slow_refusals_do_not_hold_a_mail_beyond_its_time(features: tuple[str, ...]) -> None:
    to = tuple(f"r{number}@x" for number in range(20))
    replies = Slow(OK + b"450 later\r\n" * 20 + b"503 no\r\n")
    done = talk(to=to, features=features, send_within=0.2, replies=replies)
    assert (done.broken, done.stage.marks, replies.replies < 10) == (True, [], True)


@pytest.mark.parametrize("features", [(), ("pipelining",)])
def test_the_end_of_the_worker_is_not_held_up_by_slow_refusals(features: tuple[str, ...]) -> None:
    to, stopping = tuple(f"r{number}@x" for number in range(20)), threading.Event()
    replies = Slow(OK + b"450 later\r\n" * 20 + b"503 no\r\n")
    replies.at_reply = lambda number: stopping.set() if number == 3 else None
    with pytest.raises(Stopping):
        talk(to=to, features=features, stopping=stopping, replies=replies)
    assert replies.replies == 3


def test_with_pipelining_a_mail_is_two_flights() -> None:
    done = talk(OK, OK, OK, GO, OK, to=(A, B), **PIPELINED)
    assert done.socket.sent == [
        b"MAIL FROM:<s@x>\r\nRCPT TO:<a@x>\r\nRCPT TO:<b@x>\r\nDATA\r\n",
        CONTENT + b".\r\n",
    ]
    assert done.stage.marks == [("sending", (A, B)), ("sent", (A, B))]


def test_a_server_may_keep_its_replies_until_a_whole_flight_is_done() -> None:
    done = talk(OK, OK, OK, GO, OK, to=(A, B), content=b"", **PIPELINED)
    assert done.socket.timeouts[:4] == [(1, 240), (1, 180), (1, 120), (1, 60)]
    to = tuple(f"r{number}@x" for number in range(98))
    done = talk(*[OK] * 99, GO, OK, to=to, begin_within=300, **PIPELINED)
    assert 290 < done.socket.timeouts[0][1] <= 300, "after that none would be named"
    late = talk(OK, OK, OK, GO, OK, to=(A, B), begin_within=-1.0, **PIPELINED)
    assert late.socket.timeouts[0] == (1, 60)


def test_with_pipelining_each_reply_is_that_of_its_command() -> None:
    done = talk(OK, b"450 later\r\n", OK, b"550 no\r\n", GO, OK, to=(A, B, C), **PIPELINED)
    assert done.stage.marks == [("sending", (B,)), ("sent", (B,))]
    assert (done.refused.for_now, done.refused.for_good) == ({A: 450}, {C: 550})


def test_a_refused_mail_is_not_refused_again_by_what_was_in_the_same_flight() -> None:
    no_mail = b"503 no MAIL\r\n"
    done = talk(b"451 later\r\n", no_mail, no_mail, no_mail, to=(A, B), **PIPELINED)
    assert (done.refused.for_now, done.refused.for_good) == ({A: 451, B: 451}, {})
    assert (done.stage.marks, done.broken) == ([], False)


def test_a_server_that_takes_data_for_nobody_gets_a_mail_of_nothing() -> None:
    no = b"550 no\r\n"
    done = talk(OK, no, no, GO, b"554 no valid recipients\r\n", to=(A, B), **PIPELINED)
    assert (done.socket.sent[1:], done.stage.marks) == ([b".\r\n"], [])
    assert (done.refused.for_good, done.broken) == ({A: 550, B: 550}, False)
    assert not done.connection.is_unclean


def test_many_recipients_are_named_in_flights_that_the_network_can_hold() -> None:
    to = tuple(f"r{number}@x" for number in range(250))
    done = talk(*[OK] * 251, GO, OK, to=to, **PIPELINED)
    assert [sent.count(b"\r\n") for sent in done.socket.sent[:3]] == [100, 100, 52]
    assert done.stage.marks == [("sending", to), ("sent", to)]


@pytest.mark.parametrize(
    "answers", [[OK, b"550 no\r\n"], [OK, OK, b"554 no\r\n"], [OK, OK, GO, b"552 too large\r\n"]]
)
def test_after_a_refusal_the_next_transaction_begins_with_rset(answers: list[bytes]) -> None:
    first = talk(*answers)
    again = talk(OK, OK, OK, GO, OK, after=first)
    assert again.commands[:2] == ["RSET", "MAIL FROM:<s@x>"]
    third = talk(OK, OK, GO, OK, after=first)
    assert third.commands[0] == "MAIL FROM:<s@x>"


@pytest.mark.parametrize(
    "closing",
    [b"421 4.4.2 idle\r\n", b"", b"451 4.4.2 Timeout waiting for data from client.\r\n"],
)
@pytest.mark.parametrize("features", [(), ("pipelining",)])
def test_a_connection_that_ended_between_two_mails_is_no_answer_to_the_second(
    closing: bytes, features: tuple[str, ...]
) -> None:
    first = talk(OK, OK, GO, OK, features=features)
    first.server.file = Replies(closing)
    refused = Refusals()
    second = partial(
        send,
        first.connection,
        "s@x",
        Transaction((A,)),
        Body.of(CONTENT),
        refused=refused,
        stage=Told(),
        timeouts=Timeouts(60, 600),
    )
    with pytest.raises(StaleConnection):
        second()
    assert (refused, first.connection.is_open) == (Refusals(), False)


def test_a_timeout_of_the_server_after_an_answer_to_the_mail_is_a_refusal() -> None:
    first = talk(OK, OK, GO, OK)
    second = talk(OK, b"451 4.4.2 Timeout waiting\r\n", after=first)
    assert (second.refused.for_now, second.broken) == ({A: 451}, False)


@dataclass
class Hop(NextHop):
    """Gives these connections, one after the other."""

    connections: list[Connection]

    def connection(self, *, fresh: bool = False) -> Connection:
        return self.connections.pop(0)

    def release(self, connection: Connection) -> None:
        pass


def connected(*answers: bytes, features: tuple[str, ...] = (), mails: int = 0) -> Connection:
    server = smtplib.SMTP(local_hostname="me")
    wire: Any = FakeSocket()
    server.sock, server.file = wire, Replies(b"".join(answers))
    server.esmtp_features = dict.fromkeys(features, "")
    connection = Connection(server)
    connection.mails = mails
    return connection


@pytest.mark.parametrize("utf8", [True, False])
def test_who_could_not_be_named_on_a_connection_that_ended_may_be_on_the_next(
    *, utf8: bool
) -> None:
    old = connected(b"421 4.3.2 renewed\r\n", mails=1)
    new = connected(*[OK] * (2 + utf8), GO, OK, features=("smtputf8",) * utf8)
    mail = Mail("m", "s@x", (A, "ü@x"))
    outcome = Relay(Settings.model_validate({}), hop=Hop([old, new]))(mail, CONTENT)
    assert outcome == (Complete() if utf8 else Retry(recipients=("ü@x",)))


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([OK, OK, GO, OK], Retry(recipients=(B,))),
        ([OK, b"450 later\r\n", OK, GO, OK], Retry(recipients=(A,), back_off=True)),
        ([OK, b"550 no\r\n", OK, GO, OK], Retry(recipients=(A,))),
        ([OK, OK, b"554 no\r\n"], Retry(recipients=(A, B), back_off=True)),
        ([OK, OK, GO, b"452 full\r\n"], Retry(recipients=(A, B), back_off=True)),
    ],
)
def test_a_lack_of_time_is_a_failed_attempt_only_where_nobody_was_served(
    answers: list[bytes], outcome: Retry
) -> None:
    hop = Hop([connected(*answers)])
    send = Relay(Settings.model_validate({}), hop=hop, begin_within=-1.0)
    assert send(Mail("m", "s@x", (A, B)), CONTENT) == outcome


def test_who_was_not_named_does_not_wait_because_another_was_refused() -> None:
    to = tuple(f"r{number}@x" for number in range(51))
    answers = [OK, b"450 later\r\n", *[OK] * 49, GO, OK]
    hop = Hop([connected(*answers, features=("pipelining",))])
    send = Relay(Settings.model_validate({}), hop=hop, begin_within=-1.0)
    assert send(Mail("m", "s@x", to), CONTENT) == Retry(recipients=(to[0], to[50]))


def test_a_mail_that_is_too_old_is_not_given_up_for_a_lack_of_time() -> None:
    to = tuple(f"r{number}@x" for number in range(51))
    hop = Hop([connected(b"451 later\r\n")])
    send = Relay(Settings.model_validate({}), hop=hop, begin_within=-1.0)
    outcome = send(Mail("m", "s@x", to), CONTENT, stage=BlockingStage(age=timedelta(days=6)))
    assert outcome == Retry(recipients=to, back_off=True)


CLOSING = b"421 4.7.0 too many errors\r\n"


def test_after_a_server_has_closed_those_without_an_answer_are_named_and_nobody_else() -> None:
    second = connected(OK, OK, GO, OK)
    hop = Hop([connected(OK, b"450 later\r\n", b"550 no\r\n", CLOSING), second])
    send = Relay(Settings.model_validate({}), hop=hop)
    assert send(Mail("m", "s@x", (A, B, C)), CONTENT) == Retry(recipients=(A, B), back_off=True)
    wire: Any = second._server.sock
    assert wire.sent[:2] == [b"MAIL FROM:<s@x>\r\n", f"RCPT TO:<{C}>\r\n".encode()]


@pytest.mark.parametrize("features", [(), ("pipelining",)])
def test_a_server_that_closes_without_a_new_refusal_has_failed(features: tuple[str, ...]) -> None:
    first, second = (OK, b"550 no\r\n", CLOSING), (OK, CLOSING)
    hop = Hop([connected(*first, features=features), connected(*second, features=features)])
    outcome = Relay(Settings.model_validate({}), hop=hop)(Mail("m", "s@x", (A, B)), CONTENT)
    assert outcome == Retry(recipients=(A, B), back_off=True)


@pytest.mark.parametrize("ends", [True, False])
def test_no_connection_is_opened_after_that_when_the_worker_ends_or_it_is_late(
    *, ends: bool
) -> None:
    connection, stopping = connected(), threading.Event()
    replies = Slow(OK + b"550 no\r\n" + CLOSING)
    replies.at_reply = lambda number: stopping.set() if ends and number == 3 else None
    connection._server.file = replies
    send = Relay(
        Settings.model_validate({}), hop=Hop([connection]), begin_within=60 if ends else 0.1
    )
    mail = Mail("m", "s@x", (A, B))
    assert send(mail, CONTENT, stopping=stopping) == Retry(recipients=(A, B), back_off=True)


@pytest.mark.parametrize("answer", [b"450 later\r\n", b"502 no RSET here\r\n", b"354 go\r\n"])
@pytest.mark.parametrize("features", [(), ("pipelining",)])
def test_a_refused_rset_is_no_answer_to_the_mail_after_it(
    answer: bytes, features: tuple[str, ...]
) -> None:
    first = talk(OK, b"550 no\r\n", b"503 no\r\n", features=features)
    nested = b"503 nested MAIL\r\n"
    second = talk(answer, nested, OK, GO, after=first, features=features, to=(B,))
    assert (second.refused, second.stage.marks, second.broken) == (Refusals(), [], True)
    assert not second.connection.is_open


def test_whatever_ends_a_mail_before_its_last_byte_has_sent_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(head: bytes, content: bytes) -> Iterable[bytes]:
        yield content[:10]
        raise MemoryError

    monkeypatch.setattr(smtp_dialogue, "data", half)
    stage = Told()
    with pytest.raises(MemoryError):
        talk(OK, OK, GO, OK, stage=stage)
    assert stage.marks == [BEGUN, NOT_SENT]


def test_a_connection_that_ends_after_the_second_mail_was_begun_is_its_failure() -> None:
    first = talk(OK, OK, GO, OK)
    second = talk(OK, b"421 closing\r\n", after=first)
    assert (second.broken, second.refused.for_now) == (True, {A: 421})


@pytest.mark.parametrize("to", [(A, B), (A, A)])
def test_a_connection_on_which_a_command_cannot_be_sent_is_closed(to: tuple[str, ...]) -> None:
    done = talk(OK, b"550 no\r\n", socket=FakeSocket(fails_at=2), to=to)
    assert (done.refused.for_good, done.connection.is_open) == ({A: 550}, False)


def test_the_end_of_the_worker_stops_a_mail_before_its_final_dot() -> None:
    stopping = threading.Event()

    class Ending(Told):
        def sending(self, recipients: Iterable[str] | None = None) -> None:
            super().sending(recipients)
            stopping.set()

    stage, socket = Ending(), FakeSocket()
    with pytest.raises(Stopping):
        talk(OK, OK, GO, OK, stage=stage, stopping=stopping, socket=socket)
    assert stage.marks == [BEGUN, NOT_SENT]
    assert b".\r\n" not in b"".join(socket.sent)


@pytest.mark.parametrize(
    ("sender", "features", "failure"),
    [
        (
            "s@x",
            (),
            Failure(
                "ü@x",
                "5.6.7",
                (
                    "the next server takes no addresses beyond ASCII (SMTPUTF8), "
                    "and the mail goes to or comes from one"
                ),
            ),
        ),
        (
            "s>\r\n@x",
            ("smtputf8",),
            Failure("ü@x", "5.1.7", "no mail server can be told the address of the mail's sender"),
        ),
    ],
)
def test_what_the_server_was_never_asked_is_not_reported_as_its_words(
    sender: str, features: tuple[str, ...], failure: Failure
) -> None:
    done = talk(sender=sender, to=("ü@x",), features=features)
    assert (done.refused.failure("ü@x"), done.socket.sent) == (failure, [])


def test_an_address_that_would_end_its_command_is_a_bad_one_and_the_others_are_served() -> None:
    done = talk(OK, OK, GO, OK, to=(A, "b> SIZE=1@x"))
    assert done.stage.marks == [BEGUN, SENT]
    assert done.refused.failure("b> SIZE=1@x") == Failure(
        "b> SIZE=1@x", "5.1.3", "no mail server can be told this address"
    )
    assert done.refused.counted() == "bad address for 1"


def test_answers_are_counted_by_kind() -> None:
    refused = Refusals()
    refused.add((A, B), 550)
    refused.add((C,), 0)
    refused.add_local("ü@x", "5.6.7")
    assert refused.counted() == "no answer for 1, 550 for 2, no SMTPUTF8 for 1"


def test_headers_stand_before_the_mail() -> None:
    done = talk(OK, OK, GO, OK, headers=(RecipientHeader(A, "X-For", "a"),))
    assert b"".join(done.socket.sent).endswith(b"DATA\r\nX-For: a\r\n" + CONTENT + b".\r\n")
