"""Command lines that messages tell people to type."""

from shlex import join


def command_line(words: str, *values: object) -> str:
    """`mailslice`, these words, and values from outside, each quoted for a shell."""
    return f"mailslice {words} {join(map(str, values))}"
