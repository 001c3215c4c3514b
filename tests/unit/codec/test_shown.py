"""What comes from a mail is made safe to show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec.shown import shown


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain text", "plain text"),
        ("é 世界 📨", "é 世界 📨"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\u202eeht", "\\u202eeht"),
        ("\u2066a\u2069\u200f", "\\u2066a\\u2069\\u200f"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("c1 \x9b31m \x85", "c1 \\x9b31m \\x85"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, safe):
    assert shown(text) == safe


@given(st.text())
def test_nothing_unprintable_but_blanks_is_left(text):
    assert all(character.isprintable() or character.isspace() for character in shown(text))
    assert not any(
        ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in shown(text)
    )
