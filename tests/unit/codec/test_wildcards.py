"""Patterns of people."""

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec.wildcards import LONGEST, Wildcard, is_pattern
from mailslice.model.errors import BadInput


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("*", "", True),
        ("?", "", False),
        ("?", "é", True),
        ("a*c", "abc", True),
        ("a*c", "abcd", False),
        ("*@example.net", "bob@example.net", True),
        ("*@example.net", "bob@sub.example.net", False),
        ("*@example.net", "bob@exampleXnet", False),
        ("mail-??", "mail-42", True),
        ("mail-??", "mail-421", False),
        (r"a\*b*", "a*bc", True),
        (r"a\*b*", "axbc", False),
        (r"\?*", "?", True),
        (r"\\*", "\\", True),
        ("[a-z]*", "[a-z]", True),
        ("[a-z]*", "b", False),
        ("a.*", "abc", False),
        ("a*", "a\nb", True),
    ],
)
def test_a_pattern_matches_the_whole_text(pattern, text, matches):
    assert Wildcard(pattern).matches(text) is matches


def test_case_counts_for_names_and_not_for_addresses():
    assert not Wildcard("Mail*").matches("mail1")
    assert Wildcard("*@EXAMPLE.*", ignore_case=True).matches("Bob@example.NET")
    assert not Wildcard("*ß*", ignore_case=True).matches("strasse@example.net")


@given(
    st.text("ab*?", max_size=8),
    st.text("ab", max_size=10),
)
def test_it_is_what_a_shell_matches(pattern, text):
    assert Wildcard(pattern).matches(text) is fnmatch.fnmatchcase(text, pattern)


def test_no_text_and_no_pattern_makes_it_slow():
    pattern, text = Wildcard("*a?" * 300 + "b"), "a" * 100_000
    began = time.process_time()
    assert not pattern.matches(text)
    assert time.process_time() - began < 5


def test_a_pattern_has_a_bound_and_an_end():
    with pytest.raises(BadInput, match="at most 1000"):
        Wildcard("*" * (LONGEST + 1))
    with pytest.raises(BadInput, match="ends in a backslash"):
        Wildcard("*\\")


@pytest.mark.parametrize(
    ("text", "everything"),
    [("*", True), ("**", True), ("?*", True), ("*@*", True), ("?", False), ("*a", False)],
)
def test_it_knows_whether_it_narrows_anything(text, everything):
    assert Wildcard(text).matches_all is everything


def test_only_wildcards_make_a_pattern():
    assert [is_pattern(text) for text in ("a*", "a?", "a\\b", "a[b]")] == [True, True, False, False]
