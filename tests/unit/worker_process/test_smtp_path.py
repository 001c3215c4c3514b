from __future__ import annotations

import pytest

from mailslice.worker.smtp_server.data import read_path


@pytest.mark.parametrize(
    ("given", "address", "rest"),
    [
        ("<a@x.example>", "a@x.example", ""),
        (
            " <A.b+c=d/e!f%g@X.example> SIZE=5 BODY=8BITMIME",
            "A.b+c=d/e!f%g@X.example",
            "SIZE=5 BODY=8BITMIME",
        ),
        ("a@x.example SIZE=5", "a@x.example", "SIZE=5"),
        ("<>", "<>", ""),
        ("<> SIZE=5", "<>", "SIZE=5"),
        ("<postmaster>", "postmaster", ""),
        ("<@relay.example,@[192.0.2.1]:a@x.example>", "a@x.example", ""),
        ('<"a b>\\"c"@x.example> X', '"a b>\\"c"@x.example', "X"),
        ('<"ab"@x.example>', '"ab"@x.example', ""),
        ("<a@[IPv6:2001:db8::1]>", "a@[IPv6:2001:db8::1]", ""),
        ("<a..b.@x.example>", "a..b.@x.example", ""),
        ("<用户@例子.example> SMTPUTF8", "用户@例子.example", "SMTPUTF8"),
        ("<=?utf-8?q?a=40b?=@x.example>", "=?utf-8?q?a=40b?=@x.example", ""),
        ("<a@x.example> AUTH=<>", "a@x.example", "AUTH=<>"),
    ],
)
def test_the_address_is_the_one_that_was_given(given: str, address: str, rest: str) -> None:
    assert read_path(given) == (address, rest)


@pytest.mark.parametrize(
    "given",
    [
        "",
        " ",
        "<",
        "<a@x.example",
        "<a b@x.example>",
        "<a(comment)@x.example>",
        "<a@x example>",
        "<a@x.example>b",
        "<a@x.example,b@y.example>",
        "<a@b@x.example>",
        "<a;b@x.example>",
        "<@x.example>",
        "<a@>",
        "<a@[x y]>",
        "<a\x00@x.example>",
        '<"a@x.example>',
        '<"a"b@x.example>',
    ],
)
def test_what_is_no_address_is_none(given: str) -> None:
    assert read_path(given)[0] is None
