"""The hash by which rows of both tables are held against each other."""

from dataclasses import replace
from datetime import timedelta

from mailslice.duties.migrate_v3_to_v4.copier import digest_of, row_hash
from mailslice.engine.row_files import Digest
from mailslice.model.mail import QueueName
from tests.contracts.making import bare_row, full_row, row

QUEUE = QueueName("spool")


def test_every_column_counts():
    one = full_row(QUEUE)
    mail = one.item.mail
    others = [
        replace(one, enqueued_time=one.enqueued_time + timedelta(milliseconds=1)),
        replace(one, item=replace(one.item, header_blob_id=one.item.body_blob_id)),
        *(
            replace(one, item=replace(one.item, mail=replace(mail, **change)))
            for change in (
                {"sender": None},
                {"recipients": mail.recipients[::-1]},
                {"recipients": mail.recipients[:1]},
                {"state": "error"},
                {"attributes": {**mail.attributes, "new": b"1"}},
                {"per_recipient_headers": ()},
                {"error_message": None},
                {"last_updated_ns": 1},
                {"remote_host": None},
            )
        ),
    ]
    hashes = [row_hash(each) for each in (one, *others)]
    assert len(set(hashes)) == len(hashes)
    assert row_hash(replace(one)) == hashes[0]


def test_a_row_of_nulls_has_a_hash_and_the_order_of_rows_does_not_count():
    rows = [bare_row(QUEUE), row(QUEUE), full_row(QUEUE)]
    digests = [digest_of(each) for each in rows]
    assert sum(digests, Digest()) == sum(digests[::-1], Digest())
    assert sum(digests, Digest()) != sum(digests[1:], Digest())
    assert sum(digests, Digest()).count == 3
