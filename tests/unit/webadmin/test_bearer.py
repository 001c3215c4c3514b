"""The token of webadmin, as HTTP libraries send it."""

from types import SimpleNamespace

import pytest
from fastapi import HTTPException
from starlette.datastructures import Headers

from mailslice.model.errors import BadSetting
from mailslice.webadmin.bearer import bearer


def is_let_in(token: str, sent: bytes) -> bool:
    headers = Headers(raw=[(b"authorization", sent)])
    try:
        bearer(token)(SimpleNamespace(headers=headers))
    except HTTPException as refused:
        return refused.status_code != 401
    return True


@pytest.mark.parametrize("token", ["s3cret", "schlüssel", "voilà", "a b", "鍵", "\u00a0x"])
def test_who_sends_the_token_is_let_in_and_nobody_else(token):
    text = token.strip().encode()
    assert is_let_in(token, b"Bearer " + text)
    assert is_let_in(token, b"bearer  " + text + b"\t")
    for wrong in (b"Bearer", b"Bearer ", text, b"Basic " + text, b"Bearer x" + text):
        assert not is_let_in(token, wrong)
    assert not is_let_in(token, b"Bearer " + text[:-1])


def test_a_token_in_latin_1_is_let_in_and_what_latin_1_lacks_is_not_left_out():
    assert is_let_in("schlüssel", "Bearer schlüssel".encode("latin-1"))
    assert not is_let_in("x鍵", b"Bearer x")
    assert not is_let_in("x鍵", b"Bearer x?")


@pytest.mark.parametrize(
    ("token", "why"),
    [("", "is unset"), (" \n", "is unset"), ("a\nb", "control"), ("a\x00", "control")],
)
def test_a_token_that_no_request_can_carry_is_refused_at_the_start(token, why):
    with pytest.raises(BadSetting, match=f"MAILSLICE_WEBADMIN_TOKEN .*{why}") as refused:
        bearer(token)
    assert "a\n" not in str(refused.value)
