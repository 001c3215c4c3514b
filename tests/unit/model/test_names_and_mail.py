"""Names on the wire, and mails."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mailslice.model.errors import BadInput
from mailslice.model.mail import Mail, QueueName
from mailslice.model.names import QueueTable, RabbitNames, file_name, queue_name

DECLARATIONS = json.loads((Path(__file__).parents[2] / "golden" / "declarations.json").read_text())


def test_names_are_those_that_james_declared():
    text = json.dumps(DECLARATIONS)
    names = RabbitNames(QueueName("golden-72b131f1"))
    for name in (
        names.exchange,
        names.work_queue,
        names.dead_letter_exchange,
        names.dead_letter_queue,
    ):
        assert f'"{name}"' in text


def test_tables_are_lower_case_as_on_disk():
    assert [table.cql for table in QueueTable] == ["enqueuedmailsv3", "enqueuedmailsv4"]


@pytest.mark.parametrize("name", ["spool", "outgoing", "a" * 200, "warteschlange-ü", "with space"])
def test_queue_names(name):
    assert queue_name(name) == name


@pytest.mark.parametrize("name", ["", "-", "a/b", "a\nb", "a\x7f", "a" * 201, "ü" * 101, "\udcff"])
def test_bad_queue_names_are_refused_and_named(name):
    with pytest.raises(BadInput, match="queue name"):
        queue_name(name)


def test_the_name_that_stands_for_no_queue_is_no_queues():
    with pytest.raises(BadInput, match=r"queue name '-': .*, and '-' alone stands for no queue"):
        queue_name("-")
    assert queue_name("--") == "--"


@pytest.mark.parametrize("name", ["spool", "..", "a b#c%", "-", "ü" * 100, "😀" * 50, "x" * 200])
def test_as_a_file_a_name_is_one_plain_word_that_file_systems_take(name):
    found = file_name(name)
    assert len(found) <= 160
    assert found.isascii()
    assert not set(found) & set("./ \\")


def test_two_long_names_are_two_files():
    assert file_name("ü" * 99 + "a") != file_name("ü" * 99 + "b")


def test_last_updated_is_cut_to_microseconds():
    assert Mail("n", None, (), last_updated_ns=1795165687654321987).last_updated == datetime(
        2026, 11, 20, 9, 8, 7, 654321, tzinfo=UTC
    )
    assert Mail("n", None, ()).last_updated is None
    assert Mail("n", None, (), last_updated_ns=-1).last_updated == datetime(
        1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC
    )
