"""Envelopes by the headers, and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec.addresses import checked_address, checked_sender, is_address, same_address
from mailslice.codec.mime import Envelope, envelope
from mailslice.model.errors import BadInput


@pytest.mark.parametrize(
    ("header", "sender"),
    [
        (b"From: alice@example.org", "alice@example.org"),
        (b"From: Alice <alice@example.org>", "alice@example.org"),
        (b'From: "Doe, Alice" <alice@example.org>', "alice@example.org"),
        (b"From: alice@example.org (Alice)", "alice@example.org"),
        (b"From: =?utf-8?q?=C3=A9?= <alice@example.org>", "alice@example.org"),
        (b"From: caf\xe9 <alice@example.org>", "alice@example.org"),
        ("From: Älice <älice@exämple.org>".encode(), "älice@exämple.org"),
        (b"from: a@x.y, b@x.y\r\nsender: s@x.y", "s@x.y"),
        (b"From: a@x.y, b@x.y", "a@x.y"),
        (b"From: a@x.y\r\nReturn-Path: <back@x.y>", "back@x.y"),
        (b"From: a@x.y\r\nReturn-Path: <>", None),
        (b"From: a@x.y\r\nReturn-Path: < >", None),
        (b"From: a@x.y\r\nReturn-Path: broken", "a@x.y"),
        (b"From: root", None),
        (b"From: <@relay.org,@other.org:alice@example.org>", "alice@example.org"),
        (b'From: "a b"@example.org', '"a b"@example.org'),
        (b"From: a@[192.0.2.1]", "a@[192.0.2.1]"),
        (b"From:\r\n alice@example.org", "alice@example.org"),
        (b"From: alice@example.org\n\t(folded)", "alice@example.org"),
        (b"Subject: none", None),
        (b"", None),
        (b"\xff\xfe\x00", None),
        (b'From: "unclosed <a@b', None),
        (b"From: x <a@b\x00c.org>", None),
        (b"From: x <caf\xe9@example.org>", None),
    ],
)
def test_the_sender_is_found(header, sender):
    assert envelope(header + b"\r\n\r\nFrom: body@example.org").sender == sender


@pytest.mark.parametrize(
    ("header", "recipients"),
    [
        (b"To: a@x.y", ("a@x.y",)),
        (b"To: a@x.y, B <b@x.y>\r\nCc: c@x.y\r\nBcc: d@x.y", ("a@x.y", "b@x.y", "c@x.y", "d@x.y")),
        (b"To: a@x.y\r\nTo: b@x.y", ("a@x.y", "b@x.y")),
        (b"To: a@x.y, A@X.Y\r\nCc: a@x.y", ("a@x.y",)),
        (b'To: friends: a@x.y, "B, b" <b@x.y>;, c@x.y', ("a@x.y", "b@x.y", "c@x.y")),
        (b"To: undisclosed-recipients:;", ()),
        (b"To: not an address, a@x.y, , @nowhere, nobody@", ("a@x.y",)),
        (b"To: a@x.y\r\n ,b@x.y\r\n\t,c@x.y", ("a@x.y", "b@x.y", "c@x.y")),
        (b"Resent-To: r@x.y", ("r@x.y",)),
        (b"To: a@x.y\r\nResent-To: r@x.y", ("a@x.y",)),
        ("To: josé@example.org, 用户@例子.测试".encode(), ("josé@example.org", "用户@例子.测试")),
        (b"To: =?utf-8?q?a=2C?= <k@l.m>", ("k@l.m",)),
        (b"X-To: a@x.y", ()),
        (
            (
                "To: weiß@x.de, weiss@x.de, ﬁx@x.de, fix@x.de, WEISS@x.de, "
                "ÉMILE@x.de, émile@x.de, ılker@x.de, ilker@x.de"
            ).encode(),
            (
                "weiß@x.de",
                "weiss@x.de",
                "ﬁx@x.de",
                "fix@x.de",
                "ÉMILE@x.de",
                "ılker@x.de",
                "ilker@x.de",
            ),
        ),
    ],
)
def test_recipients_are_found_in_order_and_once(header, recipients):
    assert envelope(header + b"\r\n\r\n").recipients == recipients


def test_only_the_header_is_read():
    assert envelope(b"Subject: x\n\nTo: a@x.y\n") == Envelope(None, ())


def test_a_mail_that_begins_with_a_from_line_is_read():
    assert envelope(b"From x@y.z Sat Nov 21 10:00:00 2026\nFrom: a@x.y\n\n").sender == "a@x.y"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    "lines",
    [
        (b">From x@y Mon Jan  1 00:00:00 2024", b"From: a@x.org", b"To: b@y.org"),
        (b"From x@y Mon Jan  1 00:00:00 2024", b">From z", b"From: a@x.org", b"To: b@y.org"),
        (b"\xef\xbb\xbfFrom: a@x.org", b"To: b@y.org"),
        (b"From : a@x.org", b"To \t: b@y.org"),
        (b"From : a@x.org", b"To: b@y.org"),
        (b"From: a@x.org", b"To: b@y.org", b"Hello,", b"", b"as you wrote:", b"To: dave@z.org"),
        (
            b"From: a@x.org",
            b"To: b@y.org",
            b"Hello Dave",
            b"this is what came:",
            b"and from whom",
            b"in the end",
            b"To: dave@z.org",
        ),
        (b"Subject: x", b"what a filter broke", b" e@z.org", b"From: a@x.org", b"To: b@y.org"),
        (b"To: b@y.org", b"no colon", b"\tc@y.org", b"From: a@x.org"),
        (b"X-Bad Name: x", b"T\xc3\xb6: x", b"From: a@x.org", b"To:", b" b@y.org"),
        (b"\x0bFrom: e@z.org", b"\x00", b"From: a@x.org", b"To: b@y.org"),
    ],
)
def test_a_line_that_is_no_field_hides_no_field(lines, end):
    found = envelope(end.join(lines) + end + end + b"body")
    assert (found.sender, found.recipients) == ("a@x.org", ("b@y.org",))


@pytest.mark.parametrize("field", ["To", "Cc", "Bcc", "Resent-To"])
def test_no_recipient_of_a_long_list_with_quoted_names_is_lost_or_cut(field):
    for number, listed in enumerate(
        [
            b", ".join(b'"Last, First" <user%04d@example.org>' % each for each in range(2000)),
            b'"A, B" <user0000@example.org>, '
            + b", ".join(b"user%04d@example.org" % each for each in range(1, 2000)),
            b"(" * 600
            + b")" * 600
            + b" "
            + b",\r\n\t".join(
                b"user%04d@example.org (No. %d, a)" % (each, each) for each in range(2000)
            ),
        ]
    ):
        found = envelope(field.encode() + b": " + listed + b"\r\n\r\n").recipients
        assert found == tuple(f"user{each:04}@example.org" for each in range(2000)), number


@pytest.mark.parametrize(
    "deep",
    [b"(" * 600, b"(" * 600 + b")" * 600, b'"' * 601, b"<" * 600, b"a:" * 600],
    ids=lambda deep: repr(deep[:3]),
)
def test_a_sender_or_recipient_behind_deep_nesting_is_found(deep):
    found = envelope(b"From: " + deep + b" <a@x.y>\r\nTo: " + deep + b" <b@x.y>, c@x.y\r\n\r\n")
    assert (found.sender, found.recipients) == ("a@x.y", ("b@x.y", "c@x.y"))


def test_ten_thousand_recipients_are_quick():
    many = (
        b"To: "
        + b",\r\n ".join(
            b'"N, %d" <n%d@example.org>' % (number, number) for number in range(10_000)
        )
        + b"\r\nCc: "
    )
    many += b",\r\n ".join(b"n%d@example.net" % number for number in range(10_000)) + b"\r\n\r\n"
    assert len(envelope(many).recipients) == 20_000


@given(
    st.binary(max_size=300)
    | st.text(max_size=100).map(
        lambda text: (
            b"To: "
            + text.encode("utf-8", "replace")
            + b"\r\nFrom: "
            + text.encode("utf-8", "replace")
        )
    )
)
def test_no_bytes_make_it_fail(content):
    found = envelope(content)
    assert all(is_address(address) for address in found.recipients)
    assert found.sender is None or is_address(found.sender)


@pytest.mark.parametrize(
    "text",
    [
        "a@b",
        "A.b+c=d@x-y.z",
        "'quoted'@x",
        '"a b"@x.y',
        '"a\\"b"@x.y',
        "a@[127.0.0.1]",
        "a@[IPv6:::1]",
        "é@ü.de",
        "a/b@x_y",
    ],
)
def test_addresses(text):
    assert is_address(text)
    assert checked_address(f" <{text}> ") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "@b",
        "a@",
        "a@b@c",
        "a b@c",
        "a@b c",
        "a@b.",
        "a@.b",
        ".a@b",
        "a.@b",
        "a..b@c",
        "<a@b",
        "a@b\n",
        "a\x00@b",
        "a@b\u202e",
        "a@[",
        "a@b,c@d",
        "x" * 330 + "@y",
    ],
)
def test_not_addresses(text):
    assert not is_address(text)


def test_a_bad_address_is_named_with_its_place():
    with pytest.raises(
        BadInput, match="--recipient: 'nobody' is not a mail address; allowed: local@domain"
    ):
        checked_address("nobody", "--recipient")


def test_the_null_sender_is_none():
    assert checked_sender("<>") is None
    assert checked_sender(" ") is None
    assert checked_sender("<a@b>") == "a@b"


def test_addresses_are_compared_without_case():
    assert same_address("A@B.c", "a@b.C")
    assert same_address("ÉMILE@x.de", "émile@x.de")
    assert not same_address("weiß@x.de", "weiss@x.de")
    assert same_address("ΑΣ@x.gr", "ας@x.gr")
    assert same_address("ΑΣ@x.gr", "ασ@x.gr")
    assert same_address("GROẞ@x.de", "groß@x.de")
    assert not same_address(None, "")
    assert same_address(None, None)
