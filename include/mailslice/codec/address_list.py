"""Lists of addresses as headers have them: RFC 5322 3.4 with its obsolete forms, and what other
programs make of it.

One pass over the value, whatever its length and nesting: the standard library's parser takes the
square of the length, a stack frame a comment, and joins what it does not understand to addresses
that nobody wrote (`Foo a@b` -> `"Foo a"@b`).
"""

import re
from collections.abc import Iterator, Sequence

from mailslice.codec.addresses import is_address

_ENCODED = r"=\?[^?\s]+\?[bqBQ]\?[^?\s]*\?="
"""RFC 2047: one word of a name, whatever is in it."""
_PIECE = re.compile(
    rf'{_ENCODED}|"[^"\\]*(?:\\.[^"\\]*)*"|\s+|\[[0-9A-Za-z:.\-]*\]|\\.|[^\s"\\()<>,:;@.\[\]]+|.',
    re.DOTALL,
)
"""Encoded word, quoted string, blanks, domain literal, escaped character, word, one special."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_IN_COMMENT = re.compile(r"\\.|[()]", re.DOTALL)
_SEPARATORS = frozenset(",;")
_UNCLOSED = frozenset('"(')
"""After an unclosed one all is text, up to an address in angle brackets."""
_CLOSERS = frozenset(">)")
"""Unmatched ones are cut off the ends of a word; a word with one inside is no address."""


def parse_addresses(value: str) -> list[str]:
    """The addresses of a header's value, in order, without display names and comments; members of
    groups, too.

    Semicolons part addresses as commas do, and several in angle brackets beside each other are all
    taken. What is no address is left out, and hides none of those beside it; no part of it is ever
    taken for an address. A quote or parenthesis that is never closed makes text of what follows, up
    to the next address in brackets: who stands there bare may be no more than mentioned.
    """
    return list(_listed(_pieces(value)))


def _pieces(value: str) -> list[str]:
    """Strings with quotes, words, specials; blanks and comments are one blank. An unclosed quote or
    parenthesis stays alone.
    """
    pieces: list[str] = []
    comments: dict[int, int] | None = None
    at = 0
    while match := _PIECE.match(value, at):
        piece, at = match[0], match.end()
        if piece == "(":
            if comments is None:
                comments = _closed_comments(value, match.start())  # all that follow are in it
            if (end := comments.get(match.start())) is not None:
                piece, at = " ", end
        pieces.append(" " if piece.isspace() else piece)
    return pieces


def _closed_comments(value: str, start: int) -> dict[int, int]:
    """Start -> end of each closed comment from `start` on."""
    closed: dict[int, int] = {}
    opened: list[int] = []
    for match in _IN_COMMENT.finditer(value, start):
        if match[0] == "(":
            opened.append(match.start())
        elif match[0] == ")" and opened:
            closed[opened.pop()] = match.end()
    return closed


def _listed(pieces: Sequence[str]) -> Iterator[str]:
    closing = _closing_brackets(pieces)
    bare: list[str] = []
    over = unclosed = False
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        if piece == "<" and at in closing:
            yield from _in_brackets(pieces[at + 1 : closing[at]])
            bare, over, unclosed, at = [], True, False, closing[at]
        elif piece == "<":
            bare = []  # what was before it is a name; its `>` is missing
        elif piece in _SEPARATORS or piece == ":":
            # The name of a group has no @ in it: what is an address before a colon (`a@b:25`) is no
            # such name.
            yield from _addresses(bare, named=True)
            bare, over = [], False
        elif piece in _UNCLOSED:
            unclosed = True
        elif not over and not unclosed:
            bare.append(piece)
        at += 1
    yield from _addresses(bare, named=True)


def _closing_brackets(pieces: Sequence[str]) -> dict[int, int]:
    """For each `<` the `>` that closes it. One with another `<` before that is a stray."""
    closing: dict[int, int] = {}
    opened: int | None = None
    for at, piece in enumerate(pieces):
        if piece == "<":
            opened = at
        elif piece == ">" and opened is not None:
            closing[opened] = at
            opened = None
    return closing


def _in_brackets(pieces: Sequence[str]) -> Iterator[str]:
    """`a@b`, a route (RFC 5322 4.4) or `mailto:` before it; or several in one pair of brackets."""
    if next((piece for piece in pieces if piece != " "), "") == "@":
        pieces = pieces[pieces.index(":") + 1 :] if ":" in pieces else ()
    part: list[str] = []
    for piece in (*pieces, ","):
        if piece in _SEPARATORS:
            yield from _addresses(part, named=False)
            part = []
        elif piece == ":" and len(part) <= 2 and "".join(part).strip().lower() == "mailto":
            part = []
        elif piece != " " or part[-1:] not in ([], [" "]):
            # Of blanks, which comments are, too, one that follows something says it all.
            part.append(piece)


def _addresses(pieces: Sequence[str], *, named: bool) -> Iterator[str]:
    """Addresses with blanks between. `named`: other words may be there; else all must be some."""
    joined = _words(pieces, around_dots=True)
    if len(joined) <= 1:
        return filter(None, map(_address, joined))
    words = _words(pieces, around_dots=False)
    if not named:
        parsed = [_address(word) for word in words]
        return iter(()) if None in parsed else filter(None, parsed)
    # `Mr J. doe@x.y`, `doe@x .y`: is what the dot joins to it in it or not? Nobody knows.
    befores, afters = [["-"], *words], [*words[1:], ["-"]]
    beside = zip(befores, words, afters, strict=False)
    alone = (word for before, word, after in beside if before[-1] != "." and after[0] != ".")
    return filter(None, (_address(word) for word in alone if "@" in word))


def _words(pieces: Sequence[str], *, around_dots: bool) -> list[list[str]]:
    """Parted at blanks; with `around_dots` not at those around dots and @ (RFC 5322 4.4)."""
    words: list[list[str]] = []
    blank, glued = True, False
    for piece in pieces:
        if piece == " ":
            blank = True
            continue
        joins = around_dots and piece in {".", "@"}
        if words and (joins or glued or not blank):
            words[-1].append(piece)
        else:
            words.append([piece])
        blank, glued = False, joins
    return list(filter(None, map(_trimmed, words)))


def _trimmed(word: Sequence[str]) -> list[str]:
    """Without stray closing brackets at its ends."""
    positions = [at for at, piece in enumerate(word) if piece not in _CLOSERS]
    return list(word[positions[0] : positions[-1] + 1]) if positions else []


def _address(word: Sequence[str]) -> str | None:
    """The address that these pieces are; its local part is quoted only where it has to be."""
    if word.count("@") != 1:
        return None
    at = word.index("@")
    local, domain = word[:at], "".join(word[at + 1 :])
    if any(part.startswith('"') for part in local):
        if len(local) % 2 == 0 or any(
            (part == ".") is (number % 2 == 0) for number, part in enumerate(local)
        ):
            return None  # not words with dots between them
        text = "".join(
            _ESCAPED.sub(r"\1", part[1:-1]) if part.startswith('"') else part for part in local
        )
        address = f"{text}@{domain}"
        if is_address(address):
            return address
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        address = f'"{quoted}"@{domain}'
    else:
        address = f"{''.join(local)}@{domain}"
    return address if is_address(address) else None
