"""What a report says of emptied slices on a cluster that is not repaired."""

from mailslice.duties.queue_cleanup.duty import repair_warning


def test_tables_without_a_repair_are_named_with_what_can_happen():
    words = repair_warning(
        ["enqueuedmailsv4: last repair of all ranges began: not known, gc_grace: 10d"]
    )
    assert "enqueuedmailsv4: last repair" in words
    assert "live mail" in words
    assert "Repair" in words


def test_nothing_is_said_without_a_risk():
    assert repair_warning([]) == ""
