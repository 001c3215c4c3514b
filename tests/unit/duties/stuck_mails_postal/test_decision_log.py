"""What Postal's page says of a lock that was given back."""

from datetime import datetime

import pytest

from mailslice.duties.stuck_mails_postal.decision_log import error_details
from mailslice.duties.stuck_mails_postal.rules import PostalStage
from mailslice.stores.postal.rows import QueuedMessage

AT = datetime(2026, 11, 23, 12)  # noqa: DTZ001
ROW = QueuedMessage(1, 1, 7, "y", "host:a pid:1", AT, None, AT, AT, None, 0, None, 0, None)
LIVES = "It may have been sent only if that worker lives."


@pytest.mark.parametrize(
    ("stage", "is_dead", "holder", "sent"),
    [
        (PostalStage.BEFORE_SENDING, True, "Its worker is gone: ", "It was not sent."),
        (PostalStage.MAYBE_SENT, True, "Its worker is gone: ", "It may have been sent."),
        (PostalStage.BEFORE_SENDING, False, "Its worker may live, duplicates", LIVES),
        (
            PostalStage.MAYBE_SENT,
            False,
            "Its worker may live, duplicates",
            "It may have been sent.",
        ),
    ],
)
def test_a_worker_is_gone_when_a_person_said_so(
    stage: PostalStage, is_dead: bool, holder: str, sent: str
) -> None:
    text = error_details(ROW, stage, "night shift", "", is_dead=is_dead)
    assert text.startswith(holder)
    assert (
        f"locked since 2026-11-23 12:00:00 UTC by host:a pid:1. {sent} It will be retried" in text
    )
