"""SMTP intake on loopback, with an enqueuer that keeps what it gets or fails as told."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import smtplib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from mailslice.model.errors import BadInput, BadSetting, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, QueueName
from mailslice.model.settings import Settings
from mailslice.worker.io.content_loader import ContentBudget
from mailslice.worker.smtp_server import server as smtp_in
from mailslice.worker.smtp_server.conversation import Conversation, ServerTimes
from mailslice.worker.smtp_server.metrics import SmtpMetrics
from mailslice.worker.smtp_server.policy import policy_of
from mailslice.worker.smtp_server.server import serve
from tests.services.worker_process.sink import certificate

NOW = datetime(2026, 11, 21, 9, 30, 15, 123456, tzinfo=UTC)
A, B = "a@x.example", "b@x.example"
CONTENT = b"Subject: x\r\n\r\nbody\r\n"
LARGE = b"x" * 1022 + b"\r\n"
LARGE *= 9 << 10
TO_DATA = (b"EHLO c", b"MAIL FROM:<s@y>", b"RCPT TO:<a@x>", b"DATA")
TRACE = re.compile(
    rb"Received: from [^\r]+\r\n\tby [^\r]+ with (\w+) id ([^\r;]+);\r\n"
    rb"\tSat, 21 Nov 2026 09:30:15 \+0000\r\n"
)
Got = TypeVar("Got")


@dataclass
class Keeper:
    """Takes a mail when `may_finish` is set; raises `error` instead when there is one."""

    kept: list[tuple[Mail, bytes]] = field(default_factory=list)
    error: Exception | None = None
    may_finish: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def enqueue(self, mail: Mail, content: bytes) -> QueuedMail:
        self.begun.set()
        await self.may_finish.wait()
        if self.error:
            raise self.error
        self.kept.append((mail, content))
        return QueuedMail(EnqueueId(UUID(int=5)), mail, BlobId("h"), BlobId("b"))


@dataclass
class Server:
    """A server that listens, and what it was given."""

    keeper: Keeper
    port: int
    stop: asyncio.Event
    task: asyncio.Task[None]
    metrics: SmtpMetrics

    def figures(self) -> dict[str, float]:
        """Those that are not 0, by their names without the queue."""
        lines = self.metrics.page()[2].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {
            re.sub(r"^mailslice_smtp_|,?queue=\"spool\"|\{\}", "", name).replace("{}", ""): float(
                value
            )
            for name, value in pairs
            if float(value) and "_created" not in name
        }

    async def do(self, work: Callable[[smtplib.SMTP], Got]) -> Got:
        """Runs a blocking client in a thread."""

        def client() -> Got:
            with smtplib.SMTP(
                "127.0.0.1", self.port, local_hostname="client.example", timeout=10
            ) as smtp:
                return work(smtp)

        return await asyncio.to_thread(client)

    async def say(self, *lines: bytes) -> bytes:
        """Sends raw lines in one go (pipelining) and gives all answers up to the end of the
        connection.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"".join(line + b"\r\n" for line in lines) + b"QUIT\r\n")
        answers = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answers

    @property
    def only(self) -> tuple[Mail, bytes]:
        """The one mail that was kept, with its content after the trace line."""
        ((mail, content),) = self.keeper.kept
        trace = TRACE.match(content)
        assert trace is not None, content[:300]
        return mail, content[trace.end() :]


@asynccontextmanager
async def serving(
    *, finish: bool = True, times: ServerTimes | None = None, **given: Any
) -> AsyncIterator[Server]:
    groups: dict[str, Any] = {
        name: given.pop(name) for name in ("worker", "queue") if name in given
    }
    by_option = {name: given.pop(name) for name in ("host",) if name in given}  # not validated
    settings = Settings.model_validate(
        {"smtp_in": {"port": 0, "hostname": "mx.home.example", "timeout": "20s", **given}, **groups}
    )
    smtp_in = settings.smtp_in.model_copy(update=by_option)
    settings = settings.model_copy(update={"smtp_in": smtp_in})
    keeper, stop, listening = Keeper(), asyncio.Event(), asyncio.get_running_loop().create_future()
    if finish:
        keeper.may_finish.set()
    metrics = SmtpMetrics(QueueName("spool"))
    task = asyncio.create_task(
        serve(
            settings,
            policy_of(settings.smtp_in),
            keeper,
            stop,
            clock=lambda: NOW,
            metrics=metrics,
            on_listening=lambda _host, port: listening.set_result(port),
            times=times,
        )
    )
    await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    server = Server(keeper, await listening, stop, task, metrics)
    try:
        yield server
    finally:
        keeper.may_finish.set()
        stop.set()
        await asyncio.wait_for(task, 15)


def send(
    content: bytes = CONTENT,
    sender: str = "s@y.example",
    to: tuple[str, ...] = (A, B),
    options: tuple[str, ...] = (),
) -> Callable[[smtplib.SMTP], Any]:
    return lambda smtp: smtp.sendmail(sender, to, content, mail_options=options)


async def test_a_mail_is_kept_with_its_envelope_and_where_it_came_from() -> None:
    async with serving() as server:
        await server.do(send())
        mail, content = server.only
    assert content == CONTENT
    assert (mail.sender, mail.recipients, mail.state, mail.remote_addr, mail.remote_host) == (
        "s@y.example",
        (A, B),
        "root",
        "127.0.0.1",
        "localhost",
    )
    assert mail.attributes == {
        "org.apache.james.HELO": b'{"serializer":"StringSerializer","value":"client.example"}'
    }
    assert mail.last_updated_ns == 1795253415123_000_000
    assert re.fullmatch(r"Mail1795253415123-[0-9a-f-]{36}", mail.name)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"S: x\r\n\r\n..dots\r\n...\r\n.", b"S: x\r\n\r\n.dots\r\n..\r\n"),
        (
            b"S: x\r\n\r\nbare\nline feed\rand return\r\n.",
            b"S: x\r\n\r\nbare\nline feed\rand return\r\n",
        ),
        (b"S: \xe9\xff\x00\r\n\r\n\x80\r\n.", b"S: \xe9\xff\x00\r\n\r\n\x80\r\n"),
        (b"smuggled\n.\nMAIL FROM:<x@y>\r\n.", b"smuggled\n.\nMAIL FROM:<x@y>\r\n"),
        (b"long " + b"x" * 300_000 + b"\r\n.", b"long " + b"x" * 300_000 + b"\r\n"),
        (b".", b""),
    ],
)
async def test_the_bytes_after_the_trace_are_the_bytes_that_came(sent: bytes, kept: bytes) -> None:
    async with serving() as server:
        answers = await server.say(
            b"EHLO c", b"MAIL FROM:<s@y> BODY=8BITMIME", b"RCPT TO:<a@x.example>", b"DATA", sent
        )
        assert b"250 2.0.0 OK queued as 00000000-0000-0000-0000-000000000005\r\n" in answers
        assert server.only[1] == kept


async def test_the_null_sender_is_none_and_not_the_empty_text() -> None:
    async with serving() as server:
        await server.do(send(sender=""))
        assert server.only[0].sender is None


async def test_250_is_said_only_when_the_enqueue_is_durable() -> None:
    async with serving(finish=False) as server:
        sending = asyncio.create_task(server.do(send()))
        await asyncio.wait_for(server.keeper.begun.wait(), 5)
        await asyncio.sleep(0.1)
        assert not sending.done()
        server.keeper.may_finish.set()
        assert await sending == {}
        assert len(server.keeper.kept) == 1


@pytest.mark.parametrize(
    "error", [StoreUnavailable("S3 at http://10.0.0.9 does not answer"), RuntimeError("inside")]
)
async def test_what_cannot_be_stored_is_451_and_the_client_keeps_it(error: Exception) -> None:
    async with serving() as server:
        server.keeper.error = error
        with pytest.raises(smtplib.SMTPDataError) as caught:
            await server.do(send())
        assert caught.value.smtp_code == 451
        assert b"10.0.0.9" not in caught.value.smtp_error
        assert b"inside" not in caught.value.smtp_error
        server.keeper.error = None
        await server.do(send())
        assert server.only[1] == CONTENT


async def test_what_the_queue_will_never_take_is_554_and_what_we_have_to_mend_is_451() -> None:
    async with serving() as server:
        codes = []
        for error in (BadInput("mail is larger than 10 bytes"), BadSetting("wrong password")):
            server.keeper.error = error
            with pytest.raises(smtplib.SMTPDataError) as caught:
                await server.do(send())
            codes.append(caught.value.smtp_code)
        assert codes == [554, 451]


@pytest.mark.parametrize(("hops", "code"), [(100, 250), (101, 554)])
async def test_a_mail_that_goes_round_in_circles_is_refused(hops: int, code: int) -> None:
    async with serving() as server:
        lines = [b"Received: by somewhere"] * hops + [b"", b"Received: in the body", b"."]
        answers = await server.say(*TO_DATA, *lines)
        assert [int(line[:3]) for line in answers.splitlines()][-2] == code
        assert len(server.keeper.kept) == (code == 250)


async def test_hops_are_counted_where_servers_put_them_and_a_long_header_holds_nobody_up() -> None:
    async with serving() as server:
        hops = b"Received: by somewhere\r\n" * 101
        long = b"X: " + b"x" * (1 << 20) + b"\r\n"
        codes = [
            [int(line[:3]) for line in answers.splitlines()][-2]
            for content in (hops + long, long + hops)
            if (answers := await server.say(*TO_DATA, content + b"."))
        ]
        assert codes == [554, 250]


async def test_how_long_a_command_may_be_is_a_matter_of_its_own_connection() -> None:
    """An EHLO allows MAIL 536 bytes more: SIZE, SMTPUTF8, AUTH= (RFC 1870, 6531, 4954)."""
    path, size = b"MAIL FROM:<s@y>", b"SIZE=1"
    long, too_long = (path.ljust(length - len(size)) + size for length in (512 + 536, 512 + 537))
    async with serving() as server:

        async def greeted() -> Callable[[bytes], Awaitable[bytes]]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

            async def asked(command: bytes) -> bytes:
                writer.write(command + b"\r\n")
                while (line := await asyncio.wait_for(reader.readline(), 5))[3:4] == b"-":
                    pass
                return line[:3]

            await reader.readline()
            assert await asked(b"EHLO c") == b"250"
            return asked

        first, second = await greeted(), await greeted()
        await second(b"EHLO c")
        assert [await first(too_long), await first(long)] == [b"500", b"250"]
        third = await greeted()
        assert [await second(long), await third(too_long)] == [b"250", b"500"]


@pytest.mark.parametrize(("error", "code"), [(None, 250), (StoreUnavailable("no answer"), 451)])
async def test_a_client_that_hangs_up_during_the_enqueue_does_not_cut_it_in_two(
    error: Exception | None, code: int
) -> None:
    async with serving(finish=False) as server:
        server.keeper.error = error
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"EHLO c\r\nMAIL FROM:<s@y>\r\nRCPT TO:<a@x>\r\nDATA\r\nx\r\n.\r\n")
        await asyncio.wait_for(server.keeper.begun.wait(), 5)
        writer.transport.abort()
        await asyncio.sleep(0.1)
        server.keeper.may_finish.set()
    assert [content[-3:] for _, content in server.keeper.kept] == [b"x\r\n"] * (code == 250)
    assert server.figures()[f'mails_total{{code="{code}"}}'] == 1


async def test_a_stop_lets_a_mail_that_is_being_received_end_and_sends_idle_clients_away() -> None:
    async with serving(finish=False) as server:
        idle, _ = await asyncio.open_connection("127.0.0.1", server.port)
        await idle.readline()
        sending = asyncio.create_task(server.do(send()))
        await asyncio.wait_for(server.keeper.begun.wait(), 5)
        server.stop.set()
        assert (
            await asyncio.wait_for(idle.read(), 5)
            == b"421 4.3.2 The server is shutting down, try again later\r\n"
        )
        assert not server.task.done()
        server.keeper.may_finish.set()
        assert await sending == {}
        await asyncio.wait_for(server.task, 5)
    assert server.only[1] == CONTENT


async def test_a_mail_over_the_size_is_552_whether_it_says_so_or_not() -> None:
    async with serving(queue={"max_mail_bytes": 1000}) as server:
        with pytest.raises(smtplib.SMTPSenderRefused) as announced:
            await server.do(send(b"x" * 1001))
        answers = await server.say(
            b"EHLO c", b"MAIL FROM:<s@y>", b"RCPT TO:<a@x>", b"DATA", b"x\r\n" * 400 + b"."
        )
        await server.do(send(b"y" * 998))
        assert announced.value.smtp_code == 552
        assert b"\r\n552 " in answers
        assert server.only[1] == b"y" * 998 + b"\r\n"


@pytest.mark.parametrize("size", ["-1", "x", "x SIZE=1", "\u00b2", "\u0664"])
async def test_a_size_that_is_no_number_is_a_syntax_error(size: str) -> None:
    async with serving() as server:
        said = await server.say(b"EHLO c", f"MAIL FROM:<s@y> SIZE={size}".encode())
        assert b"\r\n501 Syntax: MAIL FROM" in said


async def test_more_mail_than_the_budget_is_451_but_one_of_any_size_passes_alone() -> None:
    async with serving(finish=False, worker={"memory_budget_mib": 8}) as server:
        large = asyncio.create_task(server.do(send(LARGE)))
        await asyncio.wait_for(server.keeper.begun.wait(), 10)
        with pytest.raises(smtplib.SMTPSenderRefused) as caught:
            await server.do(send(b"y" * 1000))
        server.keeper.may_finish.set()
        await large
        assert caught.value.smtp_code == 451
        assert server.only[1] == LARGE


async def test_strangers_are_550_and_nothing_of_theirs_is_kept() -> None:
    async with serving(allowed_networks=("192.0.2.0/24",)) as server:
        with pytest.raises(smtplib.SMTPRecipientsRefused) as caught:
            await server.do(send())
        assert {code for code, _ in caught.value.recipients.values()} == {550}
        assert server.keeper.kept == []


async def test_strangers_may_send_after_auth_and_the_mail_says_who() -> None:
    async with serving(allowed_networks=(), username="ursula", password="right") as server:
        with pytest.raises(smtplib.SMTPAuthenticationError):
            await server.do(lambda smtp: smtp.login("ursula", "wrong"))

        def client(smtp: smtplib.SMTP) -> None:
            smtp.login("ursula", "right")
            send()(smtp)

        await server.do(client)
        mail, _ = server.only
        assert json.loads(mail.attributes["org.apache.james.SMTPAuthUser"]) == {
            "serializer": "StringSerializer",
            "value": "ursula",
        }
        assert b"with ESMTPA id" in server.keeper.kept[0][1]


async def test_a_client_that_logged_in_may_say_for_whom_as_postfix_does() -> None:
    async with serving(allowed_networks=(), username="ursula", password="right") as server:

        def client(smtp: smtplib.SMTP) -> None:
            smtp.login("ursula", "right")
            send(options=("AUTH=<>",))(smtp)

        await server.do(client)
        assert server.only[0].sender == "s@y.example"
    async with serving() as server:
        assert b"\r\n555 " in await server.say(b"EHLO c", b"MAIL FROM:<s@y.example> AUTH=<>")


async def test_an_address_is_kept_as_it_was_given_and_no_encoded_word_in_it_is_decoded() -> None:
    local = b"=?utf-8?q?eve=40evil.example?="
    async with serving() as server:
        await server.say(
            b"EHLO c",
            b"MAIL FROM:<s@y.example>",
            b"RCPT TO:<" + local + b"@x.example>",
            b"DATA",
            b"",
            b".",
        )
        assert server.only[0].recipients == (local.decode() + "@x.example",)


async def test_passwords_can_be_guessed_five_times_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each wrong one is a line with the client's address: fail2ban bans by it."""
    caplog.set_level("INFO", "mailslice")
    async with serving(username="u", password="p") as server:
        answers = await server.say(b"EHLO c", *[b"AUTH PLAIN AHUAeA=="] * 6)
        assert answers.count(b"\r\n535 ") == 5
        assert b"\r\n421 4.7.0 AUTH sent too many times" in answers
    lines = [record for record in caplog.records if "password" in record.getMessage()]
    assert [line.getMessage() for line in lines] == ["wrong password from 127.0.0.1"] * 5
    facts = {(vars(line)["action"], vars(line)["client"]) for line in lines}
    assert facts == {("smtp_wrong_password", "127.0.0.1")}


@pytest.mark.parametrize(
    "words",
    [(b"AUTH login dQ==", b"cA=="), (b"auth Plain  AHUAcA==",), (b"AUTH PLAIN\tAHUAcA==",)],
)
async def test_a_mechanism_of_auth_has_no_case(words: tuple[bytes, ...]) -> None:
    async with serving(username="u", password="p") as server:
        assert b"\r\n235 " in await server.say(b"EHLO c", *words)
        assert b"\r\n501 " in await server.say(b"EHLO c", b"AUTH")


async def test_a_password_may_be_long() -> None:
    """RFC 4954 4: lines of AUTH have up to 12288 bytes."""
    password = "p" * 9000
    async with serving(username="u", password=password) as server:
        both = base64.b64encode(f"\0u\0{password}".encode())
        assert b"\r\n235 " in await server.say(b"EHLO c", b"AUTH PLAIN " + both)
        assert b"\r\n500 " in await server.say(b"EHLO c", b"AUTH PLAIN " + both + b"x" * 300)


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ((b"VRFY <\xff",), b"\r\n502 Could not VRFY <?\r\n"),
        ((b"VRFY postmaster",), b"\r\n252 "),
        ((b"AUTH PLAIN", b"x" * (70 << 10)), b"\r\n500 5.5.6 "),
        ((b"AUTH \xff",), b"\r\n504 "),
        ((b"HELP \xff",), b"\r\n501 "),
        ((b"MAIL FROM:<\xff",), b"\r\n553 "),
    ],
)
async def test_what_a_stranger_says_is_answered_and_no_error_of_ours(
    lines: tuple[bytes, ...], answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mailslice")
    async with serving(username="u", password="p") as server:
        assert answer in await server.say(b"EHLO c", *lines)
    assert [one for one in caplog.records if "failed" in one.getMessage()] == []


async def test_auth_is_not_announced_where_there_is_no_user() -> None:
    async with serving() as server:
        answers = await server.say(b"EHLO c", b"AUTH PLAIN AHUAeA==")
        assert b"AUTH" not in answers.split(b"250 HELP")[0]
        assert b"\r\n538 " in answers or b"\r\n535 " in answers
        for word in (b"250-SIZE 157286400", b"250-8BITMIME", b"250-SMTPUTF8", b"250-PIPELINING"):
            assert word in answers


async def test_unicode_addresses_need_smtputf8_and_are_kept_where_james_is_not() -> None:
    async with serving(queue={"shared": False}) as server:
        refused = await server.say(b"EHLO c", "MAIL FROM:<jürgen@y.example>".encode())
        await server.do(
            send(sender="jürgen@bücher.example", to=("用户@例子.example",), options=("SMTPUTF8",))
        )
        mail, _ = server.only
        assert b"\r\n553 5.6.7 " in refused
        assert (mail.sender, mail.recipients) == ("jürgen@bücher.example", ("用户@例子.example",))
        assert b"with UTF8SMTP id" in server.keeper.kept[0][1]


@pytest.mark.parametrize(
    "line", [b"RCPT TO:<\xff\xfe@x>", b"RCPT TO:<nodomain>", b"RCPT TO:<a@>", b"RCPT TO:<a b@x>"]
)
async def test_an_address_that_cannot_be_kept_is_refused(line: bytes) -> None:
    async with serving() as server:
        answers = await server.say(b"EHLO c", b"MAIL FROM:<s@y> SMTPUTF8", line)
        assert answers.splitlines()[-2][:4] == b"553 "


BEYOND_JAMES = ("a@[IPv6:2001:db8::1]", "a@x_y.z", "jürgen@bücher.example")


@pytest.mark.parametrize(
    "address",
    [
        *("a@x.", "a..b@x.y", ".a@x", "a.@x", "a@x..y", "a@.x", "a@-x.y", "a@x-.y", '""@x'),
        *('"a..b"@x', "a@_x.y", "a@x.y_", "a@x.1y", "a@x.12", "a@12", f"a@{'x' * 64}.y"),
        f"a@{'x' * 62}.{'x' * 62}.{'x' * 62}.{'x' * 62}.yy",
        *("a@[192..2]", "a@[192.0.2]", "a@[192.0.2.256]", "a@192.0.2", "a@[192.0.2.01]"),
        *("a@x_y.z", "a@[x-y]", "a@[IPv6:2001:db8::1]", "a@[2001:db8::1]", "a@[::ffff:192.0.2.1]"),
        r'"a\,b"@x',
    ],
)
async def test_an_address_that_james_cannot_read_is_refused_on_a_queue_that_it_shares(
    address: str,
) -> None:
    async with serving() as server:
        asked = [
            f"MAIL FROM:<{address}>",
            f"MAIL FROM:<{address}> SMTPUTF8",
            "MAIL FROM:<>",
            f"RCPT TO:<{address}>",
            "RCPT TO:<b@x>",
        ]
        answers = await server.say(b"EHLO c", *(line.encode() for line in asked))
        assert [line[:9] for line in answers.splitlines()[-6:-1]] == [
            b"553 5.1.3",
            b"553 5.1.3",
            b"250 2.1.0",
            b"553 5.1.3",
            b"250 2.1.5",
        ]


@pytest.mark.parametrize("address", ["jürgen@x.y", '"ü"@x.y', "a@bücher.example"])
async def test_james_reads_no_address_beyond_ascii(address: str) -> None:
    async with serving() as server:
        asked = [f"MAIL FROM:<{address}> SMTPUTF8", "MAIL FROM:<> SMTPUTF8", f"RCPT TO:<{address}>"]
        answers = await server.say(b"EHLO c", *(line.encode() for line in asked))
        codes = [line[:9] for line in answers.splitlines()[-4:-1]]
        assert codes == [b"553 5.6.7", b"250 2.1.0", b"553 5.6.7"]


@pytest.mark.parametrize(
    "address",
    [
        '"a b"@x',
        '"a@b"@x.y',
        '".a."@x',
        "a@[192.0.2.1]",
        "a@192.0.2.1",
        f"a@{'x' * 63}.y",
        f"a@{'x' * 62}.{'x' * 62}.{'x' * 62}.{'x' * 62}.y",
        "a.b+c=d@x-y.z",
        "a@1x.y",
        *BEYOND_JAMES,
    ],
)
async def test_unusual_addresses_that_are_right_are_kept(address: str) -> None:
    async with serving(queue={"shared": address not in BEYOND_JAMES}) as server:
        lines = [
            b"EHLO c",
            f"MAIL FROM:<{address}> SMTPUTF8".encode(),
            f"RCPT TO:<{address}>".encode(),
            b"DATA",
            b"x\r\n.",
        ]
        await server.say(*lines)
        mail, _ = server.only
        assert (mail.sender, mail.recipients) == (address, (address,))


async def test_one_recipient_too_many_is_452_and_the_rest_get_the_mail() -> None:
    async with serving(max_recipients=2) as server:
        refused = await server.do(send(to=(A, B, "c@x.example")))
        assert refused == {"c@x.example": (452, b"4.5.3 Too many recipients")}
        assert server.only[0].recipients == (A, B)


async def test_ten_thousand_recipients_and_a_header_of_a_megabyte_come_in_one_mail() -> None:
    header = (
        b"".join(b"X-Line-%05d: %s\r\n" % (number, b"x" * 80) for number in range(11_000)) + b"\r\n"
    )
    async with serving() as server:
        wanted = tuple(f"r{number}@x.example" for number in range(10_000))
        await server.say(
            b"EHLO c",
            b"MAIL FROM:<s@y>",
            *(f"RCPT TO:<{one}>".encode() for one in wanted),
            b"DATA",
            header + b"body\r\n.",
        )
        assert server.only[0].recipients == wanted
        assert server.only[1] == header + b"body\r\n"


async def test_many_recipients_are_counted_as_memory_until_their_mail_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = ContentBudget(20_000)
    monkeypatch.setattr(smtp_in, "ContentBudget", lambda _limit: budget)
    mail = [
        b"EHLO c",
        b"MAIL FROM:<s@y>",
        *(b"RCPT TO:<recipient-%03d@x.example>" % number for number in range(300)),
    ]
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(line + b"\r\n" for line in (*mail, b"NOOP")))
        taken = await asyncio.wait_for(reader.readuntil(b"250 OK\r\n"), 30)
        assert taken.count(b"250 2.1.5 ") == 300, "a mail that is alone passes"
        assert 100 <= (await server.say(*mail)).count(b"\r\n250 2.1.5 ") < 300
        assert b"\r\n451 4.3.1 Too much mail at once" in await server.say(*mail)
        writer.write(b"RSET\r\nMAIL FROM:<s@y>\r\nNOOP\r\n")
        await asyncio.wait_for(reader.readuntil(b"250 OK\r\n"), 30)
        assert budget.fits(20_000)
        assert (await server.say(*mail, b"DATA", CONTENT + b".")).count(b"\r\n250 2.1.5 ") == 300
        assert len(server.only[0].recipients) == 300
        assert budget.fits(20_000), "of the mail as of the client that left"
        writer.close()


async def test_a_recipient_named_twice_is_kept_once() -> None:
    async with serving() as server:
        await server.do(send(to=(A, A)))
        assert server.only[0].recipients == (A,)


async def test_one_client_too_many_is_421_and_may_come_again() -> None:
    async with serving(max_connections=1) as server:
        first, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await first.readline()).startswith(b"220 ")
        second, _ = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await asyncio.wait_for(second.read(), 5)).startswith(b"421 4.3.2 ")
        writer.close()
        for _ in range(50):
            third, other = await asyncio.open_connection("127.0.0.1", server.port)
            greeting = await third.readline()
            other.close()
            if greeting.startswith(b"220 "):
                break
        assert greeting.startswith(b"220 mx.home.example ")


STRANGER: dict[str, Any] = {"allowed_networks": (), "username": "u", "password": "p"}
LOGIN = b"AUTH PLAIN AHUAcA=="


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_client_that_hangs_up_at_once_leaves_no_socket() -> None:
    async with serving() as server:
        before = open_files()
        for _ in range(30):
            socket.create_connection(("127.0.0.1", server.port)).close()
        await asyncio.sleep(0.5)
        assert open_files() <= before, "connections that other tests left may end meanwhile"


async def greeting(server: Server) -> tuple[bytes, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    return await asyncio.wait_for(reader.readline(), 5), writer


async def test_one_client_outside_of_the_networks_has_so_many_connections_and_no_more() -> None:
    async with serving(connections_per_client=2, **STRANGER) as server:
        clients = [await greeting(server) for _ in range(3)]
        words = [word[:9] for word, _ in clients]
        assert words == [b"220 mx.ho", b"220 mx.ho", b"421 4.3.2"]
        assert server.figures() == {"connections": 2, 'connections_refused_total{of="client"}': 1}
    async with serving(connections_per_client=2) as server:
        clients = [await greeting(server) for _ in range(5)]
        assert [word[:3] for word, _ in clients] == [b"220"] * 5


async def test_a_wrong_password_is_answered_late_and_a_right_one_is_not() -> None:
    async with serving(times=ServerTimes(wrong_password=1.0), **STRANGER) as server:
        began = time.monotonic()
        assert b"\r\n235 " in await server.say(b"EHLO c", LOGIN)
        right = time.monotonic() - began
        assert b"\r\n535 " in await server.say(b"EHLO c", b"AUTH PLAIN AHUAeA==")
        wrong = time.monotonic() - began - right
        assert (right < 0.5, wrong >= 1.0) == (True, True)
        assert server.figures()["wrong_passwords_total"] == 1


async def test_a_client_that_hangs_up_keeps_its_place_until_the_pause_is_over() -> None:
    pause = 1.5
    limits = {"connections_per_client": 2, "times": ServerTimes(wrong_password=pause)}
    async with serving(**limits, **STRANGER) as server:
        began = time.monotonic()
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"EHLO c\r\nAUTH PLAIN AHUAeA==\r\n")
            await asyncio.wait_for(reader.readuntil(b"250 HELP\r\n"), 5)
            with pytest.raises(TimeoutError):  # a right password would be answered by now
                await asyncio.wait_for(reader.read(1), 0.1)
            writer.transport.abort()
        words = b"421 "
        while words.startswith(b"421 "):
            await asyncio.sleep(0.05)
            words, _ = await greeting(server)
        assert time.monotonic() - began >= pause


async def test_a_stranger_that_does_not_log_in_is_sent_away_however_busy_it_is() -> None:
    times = ServerTimes(login=0.5)

    async def busy(server: Server, *first: bytes) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        began = time.monotonic()
        with suppress(ConnectionError):
            writer.write(b"".join(line + b"\r\n" for line in (b"EHLO c", *first)))
            while time.monotonic() < began + 1.5:
                writer.write(b"NOOP\r\n")
                if not await reader.read(1000):
                    break
                await asyncio.sleep(0.05)
        writer.close()
        return time.monotonic() - began

    async with serving(times=times, **STRANGER) as server:
        assert await busy(server) < 1.2
        assert await busy(server, LOGIN) >= 1.5
    async with serving(times=times) as server:
        assert await busy(server) >= 1.5


@pytest.mark.parametrize(
    "content",
    [b"a\nb\r\n.", b"a\rb\r\n.", b"a\r\n\n.\r\n.", b"x" * 200_000 + b"\n\r\n.", b"\r\r\n."],
)
async def test_bare_line_ends_are_refused_from_strangers_and_taken_from_the_networks(
    content: bytes,
) -> None:
    mail = (b"MAIL FROM:<s@y>", b"RCPT TO:<a@x>", b"DATA", content)
    async with serving(**STRANGER) as server:
        again = await server.say(b"EHLO c", LOGIN, *mail, *mail[:3], b"a\r\nb\r\n.")
        assert again.count(b"\r\n550 5.6.11 Bare <LF> or <CR>") == 1
        assert server.only[1] == b"a\r\nb\r\n", "the next mail of that client is taken"
        assert server.figures()['mails_total{code="550"}'] == 1
    async with serving(refuse_bare_line_ends=False, **STRANGER) as server:
        assert b"\r\n250 2.0.0 " in await server.say(b"EHLO c", LOGIN, *mail)
    async with serving() as server:
        assert b"\r\n250 2.0.0 " in await server.say(b"EHLO c", *mail)


async def test_long_lines_have_no_bare_ends() -> None:
    long = b"x" * 300_000 + b"\r\n" + b"y" * 65_535 + b"\r\n."
    async with serving(**STRANGER) as server:
        mail = (b"MAIL FROM:<s@y>", b"RCPT TO:<a@x>", b"DATA", long)
        assert b"\r\n250 2.0.0 " in await server.say(b"EHLO c", LOGIN, *mail)


async def test_a_mail_that_trickles_in_is_cut_off_in_the_end() -> None:
    piece = b"x" * 1022 + b"\r\n"
    async with serving(times=ServerTimes(mail=0.5)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"EHLO c\r\nMAIL FROM:<s@y>\r\nRCPT TO:<a@x>\r\nDATA\r\n")
        await asyncio.wait_for(reader.readuntil(b"354 "), 5)
        began = time.monotonic()
        with suppress(ConnectionError, RuntimeError):  # uvloop: of a handle that is closed
            while not reader.at_eof() and time.monotonic() < began + 60:
                writer.write(piece * 4)  # 80 KB a second: fast enough for each piece
                await writer.drain()
                await asyncio.sleep(0.05)
        assert 0.5 <= time.monotonic() - began < 60
        assert server.keeper.kept == []
        assert await server.do(send(piece * 2000)) == {}, "a mail that comes at once has its time"
        writer.close()


async def test_a_mail_that_is_whole_at_the_deadline_is_waited_for() -> None:
    async with serving(finish=False, times=ServerTimes(drain=0.2)) as server:
        sending = asyncio.create_task(server.do(send()))
        await asyncio.wait_for(server.keeper.begun.wait(), 5)
        server.stop.set()
        await asyncio.sleep(1)
        assert not sending.done()
        server.keeper.may_finish.set()
        assert await sending == {}, "it would be sent again else, and is enqueued"
        await asyncio.wait_for(server.task, 5)
    assert len(server.keeper.kept) == 1


async def test_a_mail_that_ends_just_after_the_word_421_is_not_enqueued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversation = Conversation
    received = conversation.data_received

    def received_at_the_deadline(self: Any, data: bytes) -> None:
        received(self, data)
        if data.endswith(b"\r\n.\r\n"):
            self.dismiss()

    monkeypatch.setattr(conversation, "data_received", received_at_the_deadline, raising=False)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"EHLO c\r\nMAIL FROM:<s@y>\r\nRCPT TO:<a@x>\r\nDATA\r\n")
        await asyncio.wait_for(reader.readuntil(b"354 "), 5)
        writer.write(b"x\r\n.\r\n")
        assert b"\r\n421 4.3.2 " in await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert server.keeper.kept == []


async def test_figures_tell_what_was_answered() -> None:
    async with serving() as server:
        await server.do(send())
        server.keeper.error = StoreUnavailable("S3 does not answer")
        with pytest.raises(smtplib.SMTPDataError):
            await server.do(send())
        size = len(server.keeper.kept[0][1])
        figures = server.figures()
        figures.pop("connections", None)  # the last client is on its way out
        assert figures == {
            'mails_total{code="250"}': 1,
            'mails_total{code="451"}': 1,
            "bytes_total": size,
        }


async def test_an_idle_client_is_sent_away_after_the_timeout() -> None:
    async with serving(timeout="1s") as server:
        reader, _ = await asyncio.open_connection("127.0.0.1", server.port)
        await reader.readline()
        assert await asyncio.wait_for(reader.read(), 5) == b""


@asynccontextmanager
async def deaf_client(port: int) -> AsyncIterator[None]:
    """One that asks and asks, and reads nothing of the answers, until the server cannot send it any
    more.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        with suppress(TimeoutError, ConnectionError):
            while True:
                await asyncio.wait_for(loop.sock_sendall(client, b"HELP\r\n" * 1000), 1)
        yield


async def test_a_client_that_never_reads_loses_its_place_after_the_timeout() -> None:
    async with (
        serving(max_connections=1, timeout="1s") as server,
        deaf_client(server.port),
        asyncio.timeout(30),
    ):
        greeting = b""
        while not greeting.startswith(b"220 "):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            greeting = await reader.readline()
            writer.close()
            await asyncio.sleep(0.05)


async def test_a_client_that_never_reads_does_not_keep_the_server_from_ending() -> None:
    async with serving(times=ServerTimes(goodbye=0.3)) as server, deaf_client(server.port):
        server.stop.set()
        await asyncio.wait_for(server.task, 15)


async def test_a_client_that_is_silent_in_its_tls_handshake_does_not_keep_the_server_from_ending(
    tmp_path: Path,
) -> None:
    cert, key = certificate(tmp_path)
    times = ServerTimes(goodbye=0.3)
    async with serving(times=times, tls_certificate=cert, tls_key=key) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"EHLO c\r\nSTARTTLS\r\n")
        while not (await reader.readline()).startswith(b"220 Ready"):
            pass
        server.stop.set()
        await asyncio.wait_for(server.task, 15)
        writer.close()


@pytest.mark.parametrize("hello", [b"", b"no TLS at all\r\n"])
async def test_a_client_that_gives_up_a_tls_handshake_is_no_error(
    hello: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mailslice")
    cert, key = certificate(tmp_path)
    async with serving(tls_certificate=cert, tls_key=key) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"EHLO c\r\nSTARTTLS\r\n")
        while not (await reader.readline()).startswith(b"220 Ready"):
            pass
        writer.write(hello)
        writer.write_eof()
        await reader.read()
        writer.close()
    failed = [one for one in caplog.records if "session failed" in one.getMessage()]
    cause = "SSLError" if hello else "ConnectionResetError"
    assert [(one.levelname, one.getMessage()) for one in failed] == [
        ("INFO", f"SMTP session failed: {cause}")
    ]


async def test_commands_sent_in_one_go_are_answered_in_order() -> None:
    async with serving() as server:
        answers = await server.say(
            b"EHLO c",
            b"MAIL FROM:<s@y>",
            b"RCPT TO:<a@x>",
            b"RCPT TO:<bad>",
            b"RCPT TO:<b@x>",
            b"DATA",
            b"x\r\n.",
            b"NOOP",
        )
        codes = [line[:3] for line in answers.splitlines() if line[3:4] == b" "]
        assert codes == [
            b"220",
            b"250",
            b"250",
            b"250",
            b"553",
            b"250",
            b"354",
            b"250",
            b"250",
            b"221",
        ]
        assert server.only[0].recipients == ("a@x", "b@x")


async def test_a_name_in_helo_cannot_break_out_of_the_trace() -> None:
    async with serving() as server:
        await server.say(
            "HELO evil)\tX: y ü".encode(), b"MAIL FROM:<s@y>", b"RCPT TO:<a@x>", b"DATA", b"x\r\n."
        )
        content = server.keeper.kept[0][1]
        first = content.split(b"\r\n", 1)[0]
        assert re.fullmatch(rb"Received: from evil\?\?X:\?y\?{2,3} \(\[127\.0\.0\.1\]\)", first)
        assert b" with SMTP id " in content


async def test_mail_comes_through_starttls_with_auth_behind_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with serving(
        allowed_networks=(), username="u", password="p", tls_certificate=cert, tls_key=key
    ) as server:

        def client(smtp: smtplib.SMTP) -> None:
            smtp.starttls(context=ssl.create_default_context(cafile=str(cert)))
            smtp.login("u", "p")
            send(b"S: x\r\n\r\n" + b"line\r\n" * 50_000)(smtp)

        await server.do(client)
        assert server.only[1] == b"S: x\r\n\r\n" + b"line\r\n" * 50_000
        assert b"with ESMTPSA id" in server.keeper.kept[0][1]


async def test_a_second_starttls_within_tls_is_refused_and_the_conversation_goes_on(
    tmp_path: Path,
) -> None:
    cert, key = certificate(tmp_path)
    async with serving(tls_certificate=cert, tls_key=key) as server:

        def client(smtp: smtplib.SMTP) -> tuple[int, bytes]:
            smtp.starttls(context=ssl.create_default_context(cafile=str(cert)))
            answer = smtp.docmd("STARTTLS")
            send()(smtp)
            return answer

        assert await server.do(client) == (503, b"5.5.1 TLS is active already")
        assert server.only[1] == CONTENT


async def test_a_certificate_that_is_renewed_is_shown_and_half_a_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (cert, key), (new_cert, new_key) = certificate(tmp_path), certificate(tmp_path / "new")
    old, new = (ssl.create_default_context(cafile=file) for file in (cert, new_cert))
    async with serving(tls_certificate=cert, tls_key=key) as server:
        await server.do(lambda smtp: smtp.starttls(context=old))
        new_cert.replace(cert)
        await server.do(lambda smtp: smtp.starttls(context=old))
        new_key.replace(key)
        await server.do(lambda smtp: smtp.starttls(context=new))


async def test_a_client_that_waits_for_our_answer_is_not_idle() -> None:
    async with serving(finish=False, timeout="1s") as server:
        sending = asyncio.create_task(server.do(send()))
        await asyncio.wait_for(server.keeper.begun.wait(), 5)
        await asyncio.sleep(1.5)
        server.keeper.may_finish.set()
        assert await asyncio.wait_for(sending, 5) == {}
        reader, _ = await asyncio.open_connection("127.0.0.1", server.port)
        await reader.readline()
        assert await asyncio.wait_for(reader.read(), 5) == b"", "who says nothing still is"


async def test_the_postmaster_needs_no_domain() -> None:
    async with serving() as server:
        await server.say(b"EHLO c", b"MAIL FROM:<>", b"RCPT TO:<Postmaster>", b"DATA", b"x\r\n.")
        assert server.only[0].recipients == ("Postmaster@mx.home.example",)


async def test_commands_behind_starttls_in_the_clear_are_not_taken_for_encrypted_ones(
    tmp_path: Path,
) -> None:
    cert, key = certificate(tmp_path)
    async with serving(tls_certificate=cert, tls_key=key) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await reader.readline()
        writer.write(b"EHLO c\r\n")
        while (await reader.readline())[3:4] == b"-":
            pass
        writer.write(b"STARTTLS\r\nEHLO injected\r\nMAIL FROM:<evil@x>\r\n")
        assert (await reader.readline())[:3] == b"220"
        await asyncio.wait_for(
            writer.start_tls(
                ssl.create_default_context(cafile=str(cert)), server_hostname="localhost"
            ),
            10,
        )
        writer.write(b"RCPT TO:<a@x>\r\n")
        assert (await asyncio.wait_for(reader.readline(), 10))[:9] == b"503 Error", (
            "nobody has said EHLO, or MAIL"
        )
        writer.transport.abort()
    assert server.keeper.kept == []


async def test_a_port_that_is_taken_is_a_bad_setting_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadSetting, match=f"MAILSLICE_SMTP_IN_PORT={port}: cannot listen there"):
            async with serving(port=port):
                pass


@pytest.mark.parametrize("host", ["::1", "::"])
async def test_a_client_that_comes_by_ipv6_is_named_so(host: str) -> None:
    async with serving(host=host) as server:
        reader, writer = await asyncio.open_connection("::1", server.port)
        writer.write(b"".join(line + b"\r\n" for line in (*TO_DATA, b"x", b".", b"QUIT")))
        assert b"250 2.0.0 OK queued" in await asyncio.wait_for(reader.read(), 30)
        writer.close()
        ((mail, content),) = server.keeper.kept
    assert content.startswith(b"Received: from c ([IPv6:::1])\r\n")
    assert mail.remote_addr == "::1"


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
async def test_a_host_where_nobody_can_listen_is_a_bad_setting_that_names_it(host: str) -> None:
    with pytest.raises(BadSetting, match=rf"SMTP_IN_HOST='{host}'.*: cannot listen there"):
        async with serving(host=host):
            pass
