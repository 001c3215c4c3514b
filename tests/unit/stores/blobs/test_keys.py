"""Keys that the hot path's client cannot express."""

from __future__ import annotations

import pytest

from mailslice.stores.blobs.keys import is_impossible, needs_boto3


@pytest.mark.parametrize(
    ("key", "boto"),
    [
        ("0c2a3f5e-51ff-40e3-8f4b-ec489435b214", False),
        ("1_628_Ck5SoRNWUpSR4X0COv7R5ub2pUTtl6xz4dTFz++ji4M=", False),
        ("uor62xX/dcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=", False),
        ("/or62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=", True),
        ("uor62x//dcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=", True),
        ("a/", True),
        ("a/../b", True),
        ("..", True),
        ("a\nb", True),
        ("\x7f", True),
    ],
)
def test_only_keys_that_the_crate_would_change_take_the_slow_way(key: str, boto: bool) -> None:
    assert needs_boto3(key) is boto


@pytest.mark.parametrize(
    ("key", "impossible"),
    [
        ("a", False),
        ("ä" * 512, False),
        ("ä" * 512 + "x", True),
        ("", True),
        ("a\0b", True),
        ("\ud800", True),
        ("a\nb", False),
    ],
)
def test_what_no_server_can_hold_is_known_without_asking(key: str, impossible: bool) -> None:
    assert is_impossible(key) is impossible
