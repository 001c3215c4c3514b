"""Which mails a command is about, by its options."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.admin.filters import MailFilter
from mailslice.cli.selection import MailOptions
from mailslice.codec.wildcards import Wildcard
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, Mail

ONE, TWO = uuid4(), uuid4()


def selection(stdin=None, **options):
    return MailOptions(**options).parsed(stdin)


def test_ids_come_from_the_words_and_from_stdin():
    chosen = selection(ids=[str(ONE), "-"], stdin=[f"{TWO}\n", "\n", f"  {ONE}\r\n"])
    assert chosen == MailFilter(ids=frozenset({ONE, TWO}))


def test_no_line_on_stdin_is_no_mail_and_not_every_mail():
    chosen = selection(ids=["-"], stdin=[])
    assert chosen.ids == frozenset()
    assert not chosen.is_empty
    assert not chosen.matches_all


def test_a_line_that_is_no_id_is_named_with_its_number():
    with pytest.raises(BadInput, match=r"--id -: line 3: 'tide' is not an enqueue id"):
        selection(ids=["-"], stdin=[f"{ONE}\n", "\n", "tide\n"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ids": ["tide"]}, "--id: 'tide'"),
        ({"ids": ["-", "-"]}, "stdin can be read only once"),
        ({"sender": "bob"}, "sender: 'bob' is not a mail address"),
        ({"sender": ""}, "--sender: '' is not a sender; allowed: local@domain, .* and <>"),
        ({"sender": " \t"}, "--sender: ' .t' is not a sender"),
        ({"recipient": "bob"}, "recipient: 'bob' is not a mail address"),
        ({"domain": ""}, "--domain: '' is not a domain"),
        ({"domain": "bob@example.net"}, "--domain"),
        ({"name": "a*\\"}, "--name: the pattern"),
    ],
)
def test_what_is_no_selection_names_its_option(options, words):
    with pytest.raises(BadInput, match=words):
        selection(**options)


def test_text_without_wildcards_is_compared_as_before():
    chosen = selection(sender="<>", recipient="bob@example.net", name="a[1]", domain="example.net")
    assert chosen == MailFilter(
        sender="<>", recipient="bob@example.net", name="a[1]", domain="example.net"
    )


def test_text_with_wildcards_is_a_pattern():
    chosen = selection(sender="*@example.*", name="Mail?", older_than=timedelta(hours=1))
    assert chosen.sender == Wildcard("*@example.*", ignore_case=True)
    assert chosen.name == Wildcard("Mail?")
    assert chosen.as_json() == {"sender": "*@example.*", "name": "Mail?", "olderThan": "1h"}


def test_a_pattern_of_everything_is_known_as_such():
    assert selection(name="*").matches_all
    assert selection(recipient="*@*", older_than=timedelta(days=1)).matches_all
    assert not selection(name="*", domain="example.net").matches_all


def test_a_domain_that_ends_in_a_greek_sigma_is_found_as_it_is_written() -> None:
    mail = Mail("m", "a@b.example", ("c@λόγος.example",))
    for domain in ("λόγος.example", "ΛΌΓΟΣ.example"):
        assert MailFilter(domain=domain).passes(EnqueueId(ONE), mail, None, datetime.now(UTC))
    assert not MailFilter(domain="λόγου.example").passes(
        EnqueueId(ONE), mail, None, datetime.now(UTC)
    )
