"""The message codec against what a real James wrote, and against what nobody should write."""

import base64
import json
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec import message
from mailslice.model.errors import Undecodable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, RecipientHeader

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(
    path.stem for path in GOLDEN.glob("*.json") if "amqp" in json.loads(path.read_text())
)


def golden_bodies() -> list[bytes]:
    outcomes = json.loads((GOLDEN / "outcomes.json").read_text())
    bodies = [
        value["body_base64"]
        for value in outcomes.values()
        if isinstance(value, dict) and "body_base64" in value
    ]
    bodies += [
        json.loads((GOLDEN / f"{case}.json").read_text())["amqp"]["body_base64"] for case in CASES
    ]
    return [base64.b64decode(body) for body in bodies]


def body(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "enqueueId": "95fc368e-09bf-4ee3-b267-c7b76c386b44",
        "recipients": ["bob@example.net"],
        "name": "mail-1",
        "sender": "alice@example.org",
        "headerBlobId": "h",
        "bodyBlobId": "b",
    }
    fields |= changes
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode()


def test_golden_files_are_there():
    assert {"full", "minimal", "null-sender", "v3-minimal"} <= set(CASES)


@pytest.mark.parametrize("raw", golden_bodies())
def test_james_messages_come_back_byte_for_byte(raw):
    assert message.encode(message.decode(raw)) == raw


@pytest.mark.parametrize("case", CASES)
def test_fields_of_a_james_message_are_the_mail_it_was_given(case):
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    given_mail = golden["mail"]
    mail = message.decode(base64.b64decode(golden["amqp"]["body_base64"])).mail
    assert (mail.name, mail.sender, list(mail.recipients)) == (
        given_mail["name"],
        given_mail["sender"],
        given_mail["recipients"],
    )
    assert (mail.state, mail.error_message) == (given_mail["state"], given_mail["errorMessage"])
    assert (mail.remote_addr, mail.remote_host) == (
        given_mail["remoteAddr"],
        given_mail["remoteHost"],
    )
    assert mail.last_updated is not None
    assert (
        mail.last_updated.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        == given_mail["lastUpdated"]
    )
    assert [[h.recipient, h.name, h.value] for h in mail.per_recipient_headers] == given_mail[
        "perRecipientHeaders"
    ]


def test_attributes_are_the_bytes_of_the_view():
    golden = json.loads((GOLDEN / "full.json").read_text())
    mail = message.decode(base64.b64decode(golden["amqp"]["body_base64"])).mail
    view = golden["cassandra"]["row"]["attributes"]["value"]
    assert {name: value.hex() for name, value in mail.attributes.items()} == view


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("1795165687.654000000", 1795165687654000000),
        ("1795165687.123456789", 1795165687123456789),
        ("1795165687", 1795165687000000000),
        ("1795165687.5", 1795165687500000000),
        ("-1.5", -1500000000),
        ("-0.25", -250000000),
        ("0.0", 0),
        ("1.795165687123456789E9", 1795165687123456789),
        ('"2026-11-20T09:08:07.654Z"', 1795165687654000000),
        ("null", None),
    ],
)
def test_last_updated_keeps_its_nanoseconds(text, nanos):
    raw = body(lastUpdated=0).replace(b'"lastUpdated": 0', b'"lastUpdated": ' + text.encode())
    assert message.decode(raw).mail.last_updated_ns == nanos


def test_last_updated_of_an_inner_object_is_not_the_mails():
    raw = body(extra={"lastUpdated": 5}, lastUpdated=7)
    assert message.decode(raw).mail.last_updated_ns == 7_000_000_000


def test_last_updated_inside_a_text_is_not_the_mails():
    raw = body(errorMessage='x","lastUpdated":5,"', lastUpdated=7)
    assert message.decode(raw).mail.last_updated_ns == 7_000_000_000


BY_A_LOOK_BEHIND = re.compile(rb'(?<!\\)"lastUpdated"\s*:\s*(-?\d{1,12}(?:\.\d+)?)\s*[,}]')
PIECES = (
    *(b'"lastUpdated"', b'\\"lastUpdated"', b'"lastUpdated":12,', b'"lastUpdated" : -3.5 }'),
    *(b"\\", b'"', b":", b" ", b"1.5", b",", b"}", b"lastUpdated", b"x"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_the_digits_are_found_where_no_escape_stands_before_the_key(raw):
    assert message._LAST_UPDATED.findall(raw) == BY_A_LOOK_BEHIND.findall(raw)


def test_a_key_spelled_with_escapes_is_read():
    raw = body(lastUpdated=7.25).replace(b"lastUpdated", b"last\\u0055pdated")
    assert message.decode(raw).mail.last_updated_ns == 7_250_000_000


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, b"0.0"),
        (-1_500_000_000, b"-1.500000000"),
        (1, b"0.000000001"),
        (10**18, b"1000000000.000000000"),
    ],
)
def test_last_updated_is_written_with_nine_places(nanos, text):
    assert b'"lastUpdated":' + text + b"," in message.encode(mail(last_updated_ns=nanos))


def test_missing_optional_fields_are_none_or_empty():
    found = message.decode(body(state=..., lastUpdated=...)).mail
    assert (
        found.state,
        found.error_message,
        found.last_updated_ns,
        found.remote_addr,
        found.remote_host,
    ) == (None, None, None, None, None)
    assert (dict(found.attributes), found.per_recipient_headers) == ({}, ())


def test_unknown_fields_are_let_pass():
    assert message.decode(body(future={"a": [1]}, other=None)).mail.name == "mail-1"


def test_the_null_sender_spelled_with_brackets_is_none():
    assert message.decode(body(sender="<>")).mail.sender is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"not json bob@example.net", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"a":\xff}', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "not JSON"),
        (body().replace(b'"mail-1"', b'"\\ud800"'), "not JSON"),
        (body(lastUpdated=0).replace(b'"lastUpdated": 0', b'"lastUpdated": NaN'), "not JSON"),
        (body(enqueueId=...), "enqueueId is missing"),
        (body(enqueueId=7), "enqueueId is missing or not text"),
        (body(enqueueId="{95fc368e-09bf-4ee3-b267-c7b76c386b44}"), "enqueueId is not a UUID"),
        (body(name=None), "name is missing"),
        (body(recipients="bob@example.net"), "recipients is missing or not a list"),
        (body(recipients=None), "recipients is missing or not a list"),
        (body(recipients=["bob@example.net", None]), "recipients is missing or not a list"),
        (body(sender=["alice@example.org"]), "sender is not text"),
        (body(state=1), "state is not text"),
        (body(attributes=[]), "attributes is not an object"),
        (body(attributes={"a": 1}), "an attribute is not text"),
        (
            body(perRecipientHeaders={"bob@example.net": {}}),
            "perRecipientHeaders is not as James writes it",
        ),
        (body(perRecipientHeaders={"bob@example.net": {"header": {"X": [1]}}}), "is not text"),
        (body(perRecipientHeaders=[]), "perRecipientHeaders is not an object"),
        (body(lastUpdated="yesterday"), "lastUpdated is neither"),
        (body(lastUpdated="2026-11-20T09:08:07"), "lastUpdated is neither"),
        (body(lastUpdated=True), "lastUpdated is not a number"),
        (body(lastUpdated=1e300), "lastUpdated is outside"),
        (body(lastUpdated=10**15), "lastUpdated is outside"),
        (body(headerBlobId=...), "headerBlobId is missing"),
        (body(bodyBlobId=""), "bodyBlobId is empty"),
        (body()[:-1] + b', "name": "other"}', "name is given 2 times"),
        (
            body(lastUpdated=0).replace(
                b'"lastUpdated": 0', b'"lastUpdated": 1e-99999999999999999999'
            ),
            "levels or digits: InvalidOperation",
        ),
    ],
)
def test_bad_messages_are_undecodable_with_a_reason_that_names_no_address(raw, reason):
    with pytest.raises(Undecodable, match=reason) as raised:
        message.decode(raw)
    assert "@" not in str(raised.value)
    assert len(str(raised.value)) < 160


@pytest.mark.parametrize("raw", [body(x={"name": 1}), body(x={"lastUpdated": 1}, lastUpdated=7)])
def test_json_nested_deeper_than_the_second_look_bears_is_undecodable(raw, monkeypatch):
    with suppress(Undecodable):  # how deep it goes depends on Python
        assert (
            message.decode(raw[:-1] + b', "deep": ' + b"[" * 1000 + b"]" * 1000 + b"}").mail.name
            == "mail-1"
        )
    monkeypatch.setattr(message, "json", SimpleNamespace(loads=_too_deep))
    with pytest.raises(Undecodable, match="JSON with too many levels or digits: RecursionError"):
        message.decode(raw)


def _too_deep(*_, **__):
    raise RecursionError


@pytest.mark.parametrize(
    "blob_id",
    [
        "a//b",
        "..",
        "a/../b",
        "a/",
        "/a",
        "%",
        "%00",
        "é",
        "\u202e",
        "a b",
        "\\",
        "a\nb",
        "\x7f",
        "a\x00",
    ],
)
def test_odd_blob_ids_are_for_the_store_to_judge(blob_id):
    assert message.decode(body(headerBlobId=blob_id)).header_blob_id == blob_id


def test_an_attribute_may_be_called_like_a_field():
    assert message.decode(body(attributes={"name": "{}", "sender": "{}"})).mail.attributes == {
        "name": b"{}",
        "sender": b"{}",
    }


def test_a_lone_surrogate_is_refused_when_written():
    with pytest.raises(Undecodable, match="95fc368e"):
        message.encode(mail(name="\ud800"))


def test_an_attribute_that_is_not_utf8_is_refused_when_written():
    with pytest.raises(Undecodable, match="UnicodeDecodeError"):
        message.encode(mail(attributes={"a": b"\xff"}))


def test_escapes_are_spelled_as_jackson_spells_them():
    raw = message.encode(mail(name='\x01\x1f\x7f\\u001f"\t/\u2028é📨'))
    assert b'"name":"\\u0001\\u001F\x7f\\\\u001f\\"\\t/\xe2\x80\xa8\xc3\xa9\\uD83D\\uDCE8"' in raw


def mail(**changes: object) -> QueuedMail:
    fields: dict[str, object] = {
        "name": "mail-1",
        "sender": "alice@example.org",
        "recipients": ("bob@example.net",),
    }
    return QueuedMail(
        EnqueueId(UUID("95fc368e-09bf-4ee3-b267-c7b76c386b44")),
        Mail(**(fields | changes)),
        BlobId("h"),
        BlobId("b"),
    )  # type: ignore[arg-type]


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
headers = st.lists(st.builds(RecipientHeader, text, text, text), max_size=4).map(
    lambda all_headers: tuple(
        sorted(all_headers, key=lambda header: (header.recipient, header.name))
    )
)
mails = st.builds(
    Mail,
    name=text,
    sender=st.none() | text.filter(lambda sender: sender != "<>"),
    recipients=st.lists(text, max_size=3).map(tuple),
    state=st.none() | text,
    error_message=st.none() | text,
    last_updated_ns=st.none() | st.integers(-(10**18), 10**19),
    attributes=st.dictionaries(text, text.map(str.encode), max_size=3),
    remote_addr=st.none() | text,
    remote_host=st.none() | text,
    per_recipient_headers=headers,
)


@given(st.uuids(), mails)
def test_every_mail_survives_the_way_there_and_back(enqueue_id, one):
    item = QueuedMail(EnqueueId(enqueue_id), one, BlobId("h"), BlobId("b"))
    raw = message.encode(item)
    assert message.decode(raw) == item
    assert raw.isascii() or max(raw) < 0xF0


json_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
)


@given(st.binary(max_size=60) | json_values.map(json.dumps).map(str.encode))
def test_bytes_that_are_no_message_are_undecodable(raw):
    with pytest.raises(Undecodable):
        message.decode(raw)


@given(
    st.sampled_from(
        [
            "recipients",
            "lastUpdated",
            "attributes",
            "perRecipientHeaders",
            "name",
            "sender",
            "enqueueId",
        ]
    ),
    json_values,
)
def test_a_field_of_any_type_gives_a_mail_or_undecodable(field, value):
    try:
        decoded = message.decode(body(**{field: value}))
    except Undecodable:
        return
    assert message.decode(message.encode(decoded)) == decoded
