"""Parses the address lists of headers: RFC 5322 3.4 with its obsolete forms, and common deviations.

Needs one pass, whatever the length and nesting of the value. The standard library's parser needs
quadratic time and a stack frame a comment, and makes up addresses (`Foo a@b` -> `"Foo a"@b`).
"""

import re
from collections.abc import Iterator, Sequence

from mailslice.codec.addresses import is_address

_ENCODED = r"=\?[^?\s]+\?[bqBQ]\?[^?\s]*\?="
"""An encoded word of RFC 2047: one word of a display name, whatever it contains."""
_PIECE = re.compile(
    rf'{_ENCODED}|"[^"\\]*(?:\\.[^"\\]*)*"|\s+|\[[0-9A-Za-z:.\-]*\]|\\.|[^\s"\\()<>,:;@.\[\]]+|.',
    re.DOTALL,
)
"""Encoded word, quoted string, white space, domain literal, quoted pair, word, one special."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_IN_COMMENT = re.compile(r"\\.|[()]", re.DOTALL)
_SEPARATORS = frozenset(",;")
_UNCLOSED = frozenset('"(')
"""After one that is never closed, everything is text up to the next address in angle brackets."""
_CLOSERS = frozenset(">)")
"""Unmatched ones are cut off the ends of a word. A word that contains one is no address."""


def parse_addresses(value: str) -> list[str]:
    """The addresses in a header's value, in order, also those of groups. Drops display names and
    comments.

    A semicolon separates addresses as a comma does. Adjacent addresses in angle brackets all count.
    A part that is no address is dropped whole, and hides no address beside it. After a quote or
    parenthesis that is never closed, everything is text up to the next address in angle brackets: a
    bare address there may only be mentioned.
    """
    return list(_listed(_pieces(value)))


def _pieces(value: str) -> list[str]:
    """Quoted strings, words and specials. White space, or a comment, becomes one blank. An unclosed
    quote or parenthesis is a piece of its own.
    """
    pieces: list[str] = []
    comments: dict[int, int] | None = None
    at = 0
    while match := _PIECE.match(value, at):
        piece, at = match[0], match.end()
        if piece == "(":
            if comments is None:
                comments = _closed_comments(value, match.start())  # this one and all later ones
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
    after_brackets = unclosed = False
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        if piece == "<" and at in closing:
            yield from _in_brackets(pieces[at + 1 : closing[at]])
            bare, after_brackets, unclosed, at = [], True, False, closing[at]
        elif piece == "<":
            bare = []  # the `>` is missing; the words before it are a display name
        elif piece in _SEPARATORS or piece == ":":
            # Words before a colon may be the name of a group. A group's name has no @, so an
            # address there (`a@b:25`) counts.
            yield from _addresses(bare, named=True)
            bare, after_brackets = [], False
        elif piece in _UNCLOSED:
            unclosed = True
        elif not after_brackets and not unclosed:
            bare.append(piece)
        at += 1
    yield from _addresses(bare, named=True)


def _closing_brackets(pieces: Sequence[str]) -> dict[int, int]:
    """Position of `<` -> position of its `>`. Leaves out a `<` that another `<` follows first."""
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
    """The addresses in one pair of brackets, without a route (RFC 5322 4.4) or `mailto:`."""
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
            # Keeps one blank after another piece. Comments are blanks, too.
            part.append(piece)


def _addresses(pieces: Sequence[str], *, named: bool) -> Iterator[str]:
    """The addresses among the words. `named`: others are names; else all must be addresses."""
    joined = _words(pieces, around_dots=True)
    if len(joined) <= 1:
        return filter(None, map(_address, joined))
    words = _words(pieces, around_dots=False)
    if not named:
        parsed = [_address(word) for word in words]
        return iter(()) if None in parsed else filter(None, parsed)
    # `Mr J. doe@x.y`, `doe@x .y`: the dot may belong to the address or not. Such a word is dropped.
    befores, afters = [["-"], *words], [*words[1:], ["-"]]
    neighbours = zip(befores, words, afters, strict=False)
    alone = (word for before, word, after in neighbours if before[-1] != "." and after[0] != ".")
    return filter(None, (_address(word) for word in alone if "@" in word))


def _words(pieces: Sequence[str], *, around_dots: bool) -> list[list[str]]:
    """Splits at blanks; with `around_dots` not at blanks beside dots and @ (RFC 5322 4.4)."""
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
    """The word without unmatched closing brackets at its ends."""
    positions = [at for at, piece in enumerate(word) if piece not in _CLOSERS]
    return list(word[positions[0] : positions[-1] + 1]) if positions else []


def _address(word: Sequence[str]) -> str | None:
    """The address that the pieces form, or None. Quotes the local part only if it must be."""
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
