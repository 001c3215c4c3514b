"""What tests of pages compare: a wrong answer is found, a later run is not."""

import pytest

from tests.sessions import Typed, is_answer, sessions

PAGE = """
```console
$ cat > a <<END
> hello
>
> END
$ mailslice queue size spool
 queue   spool
 size    3
```
"""


def test_a_session_is_what_is_typed_and_answered():
    assert list(sessions(PAGE)) == [
        Typed("cat > a <<END\nhello\n\nEND", ""),
        Typed("mailslice queue size spool", " queue   spool\n size    3"),
    ]


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("size  3", "size 3\n", True),
        ("size 3", "size 4", False),
        ("size 3", "size 3 more", False),
        ("at 2026-11-23T06:00:00Z", "at 2027-01-01T00:00:00.123Z", True),
        ("run 20261123T060000Z-1f3a9c", "run 20261124T070000Z-aaaaaa", True),
        ("done\n...\nend", "done\nmuch\nmore\nend", True),
        ("done ... end", "failed at the end", False),
        ("0.7 s", "12.25 s", True),
    ],
)
def test_what_differs_from_run_to_run_is_no_difference(expected, actual, same):
    assert is_answer(expected, actual) is same
