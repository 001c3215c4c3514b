"""The mails of a walk. Envelope and content follow from the name, so that every consumer can check
whether a mail is complete.
"""

from __future__ import annotations

import random

from mailslice.model.mail import Mail

_SIZES = (300, 2_000, 4_000, 20_000, 300_000, 1_500_000)
_OFTEN = (20, 40, 30, 7, 2, 1)


def new_name(rng: random.Random, who: str, number: int) -> str:
    (size,) = rng.choices(_SIZES, _OFTEN)
    return f"w-{who}-{number}-{size}"


def mail_of(name: str, sender: str) -> Mail:
    return Mail(name, sender, ("one@there.example", "two@there.example"))


def content_of(name: str) -> bytes:
    size = int(name.rpartition("-")[2])
    return b"Subject: %s\r\n\r\n" % name.encode() + random.Random(name).randbytes(size)
