"""Mails in files, folders, mboxes and Maildirs: byte for byte, whatever is broken beside them."""

import io
import mailbox
import os
import re
import time
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec.files import _SEPARATOR, read_mails

FROM = b"From alice@example.org Sat Nov 21 10:00:00 2026\n"


def contents(path, **limits):
    return [found.content for found in read_mails(path, **limits)]


def errors(path, **limits):
    return [found.error for found in read_mails(path, **limits)]


def test_an_eml_file_is_one_mail_whatever_its_bytes(tmp_path):
    for number, content in enumerate(
        [b"", b"From x\n\nFrom y\n\n", b"\xff\x00\r\n", FROM + b"A: 1\n\n"]
    ):
        path = tmp_path / f"{number}.EML"
        path.write_bytes(content)
        assert contents(path) == [content]
        assert [found.label for found in read_mails(path)] == [str(path)]


def test_an_mbox_gives_each_mail_without_its_from_line_and_the_empty_line_after_it(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(
        FROM + b"A: 1\n\nbody\n\n" + FROM + b"B: 2\r\n\r\nbody\r\n\r\n\n" + FROM + b"C: 3\n"
    )
    assert contents(path) == [b"A: 1\n\nbody\n", b"B: 2\r\n\r\nbody\r\n\r\n", b"C: 3\n"]
    assert [found.label for found in read_mails(path)] == [f"{path}#1", f"{path}#2", f"{path}#3"]


def test_an_mbox_with_crlf(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(b"From a\r\nA: 1\r\n\r\nbody\r\n\r\nFrom b\r\nB: 2\r\n\r\n\r\n")
    assert contents(path) == [b"A: 1\r\n\r\nbody\r\n", b"B: 2\r\n\r\n"]


def test_quoted_from_lines_lose_one_mark(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(FROM + b"A: 1\n\n>From me\n>>From you\n> From her\nx >From him\n")
    assert contents(path) == [b"A: 1\n\nFrom me\n>From you\n> From her\nx >From him\n"]


def test_from_in_a_paragraph_does_not_split_a_mail(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(FROM + b"A: 1\n\nI come\nFrom afar\n\n" + FROM + b"B: 2\n\n")
    assert contents(path) == [b"A: 1\n\nI come\nFrom afar\n", b"B: 2\n"]


def test_a_from_line_with_a_date_splits_even_without_an_empty_line(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(FROM + b"A: 1\n\nno end\n" + FROM + b"B: 2\n\n\n")
    assert contents(path) == [b"A: 1\n\nno end\n", b"B: 2\n\n"]


def test_what_pythons_mailbox_writes_is_read(tmp_path):
    box = mailbox.mbox(tmp_path / "mbox")
    for number in range(3):
        mail = EmailMessage()
        mail["Subject"] = f"mail {number}"
        mail.set_content(f"From here\n\nFrom there {number}\n")
        box.add(mail)
    box.flush()
    assert [found.splitlines()[0] for found in contents(tmp_path / "mbox")] == [
        b"Subject: mail 0",
        b"Subject: mail 1",
        b"Subject: mail 2",
    ]
    assert all(b"\nFrom here\n\nFrom there" in found for found in contents(tmp_path / "mbox"))


def test_a_file_that_is_no_mbox_is_said(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_bytes(b"Dear all\n\nFrom now on\n")
    assert errors(path)[0].startswith("not an mbox: it does not begin with a line 'From '")


def test_an_mbox_that_begins_with_garbage_gives_an_error_and_its_mails(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(b"garbage\nmore\n\n" + FROM + b"A: 1\n\n\n")
    found = list(read_mails(path))
    assert [one.content for one in found] == [None, b"A: 1\n\n"]
    assert "not an mbox" in found[0].error


def test_a_mail_over_the_limit_is_said_and_the_rest_goes_on(tmp_path):
    path = tmp_path / "mbox"
    path.write_bytes(
        FROM + b"x" * 5_000_000 + b"\n\n" + FROM + b"y" * 99 + b"\n\n" + FROM + b"z" * 101 + b"\n\n"
    )
    found = list(read_mails(path, max_bytes=100))
    assert [one.content for one in found] == [None, b"y" * 99 + b"\n", None]
    assert "larger than the limit of 100 bytes" in found[0].error
    (tmp_path / "big.eml").write_bytes(b"x" * 101)
    (tmp_path / "fits.eml").write_bytes(b"x" * 100)
    assert contents(tmp_path / "big.eml", max_bytes=100) == [None]
    assert contents(tmp_path / "fits.eml", max_bytes=100) == [b"x" * 100]
    assert contents(tmp_path / "fits.eml", max_bytes=2**70) == [b"x" * 100], (
        "the limit is no buffer's size"
    )


def test_a_line_longer_than_any_buffer_is_kept(tmp_path):
    path = tmp_path / "mbox"
    content = b"A: 1\n\n" + b"x" * 3_000_000 + b"From y" + b"z" * 3_000_000 + b"\n"
    path.write_bytes(FROM + content + b"\n")
    assert contents(path) == [content]


def test_a_folder_gives_its_eml_files_sorted_at_any_depth(tmp_path):
    for name in ("b/2.eml", "a.eml", "b/1.eml", "b/c/3.eml", "b/note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert contents(tmp_path) == [b"a.eml", b"b/1.eml", b"b/2.eml", b"b/c/3.eml"]


def test_a_maildir_gives_new_and_cur(tmp_path):
    box = mailbox.Maildir(tmp_path / "Maildir", create=True)
    key = box.add(b"A: 1\n\nFrom me\n")
    (tmp_path / "Maildir" / "new" / key).rename(tmp_path / "Maildir" / "cur" / (key + ":2,S"))
    box.add(b"B: 2\n\n")
    (tmp_path / "Maildir" / "tmp" / "half").write_bytes(b"half")
    assert contents(tmp_path / "Maildir") == [b"B: 2\n\n", b"A: 1\n\nFrom me\n"]


@pytest.mark.parametrize("part", ["new", "cur"])
@pytest.mark.parametrize("name", ["1795.m1.host:2,S", "1795.eml"])
def test_a_maildir_whose_empty_folder_was_left_out_by_git_or_tar_is_one(tmp_path, part, name):
    (tmp_path / part).mkdir()
    (tmp_path / part / name).write_bytes(b"A: 1\n")
    (tmp_path / part / "1796.m2.host").write_bytes(b"B: 2\n")
    assert sorted(contents(tmp_path)) == [b"A: 1\n", b"B: 2\n"]


@pytest.mark.parametrize("part", ["new", "cur"])
def test_a_folder_of_eml_files_may_hold_a_folder_called_like_a_maildirs(tmp_path, part):
    (tmp_path / part).mkdir()
    (tmp_path / "0.eml").write_bytes(b"zero")
    (tmp_path / part / "1.eml").write_bytes(b"one")
    assert contents(tmp_path) == [b"zero", b"one"]
    (tmp_path / part / "2026").mkdir()
    (tmp_path / "0.eml").rename(tmp_path / part / "2026" / "0.eml")
    assert contents(tmp_path) == [b"one", b"zero"]


@pytest.mark.parametrize("part", ["new", "cur"])
@pytest.mark.parametrize("name", ["main.py", "README", "2026.txt", "1796.m2.host/x"])
def test_a_folder_that_happens_to_have_one_of_a_maildirs_is_none(tmp_path, part, name):
    (tmp_path / part / name).parent.mkdir(parents=True)
    (tmp_path / part / name).write_bytes(b"To: a@b.example\n")
    (tmp_path / part / "1795.m1.host:2,S").write_bytes(b"A: 1\n")
    [error] = errors(tmp_path)
    assert error.startswith("no *.eml in this folder, and it is no Maildir")


@pytest.mark.parametrize(
    "name",
    [
        "1795000000_0.12.host,U=3,FMD5=0:2,",
        "1795000000.12_3.host.example,S=9",
        "odd:2,RS",
        "1795.M1P2V3.host",
    ],
)
def test_names_of_mails_as_programs_make_them(tmp_path, name):
    (tmp_path / "cur").mkdir()
    (tmp_path / "cur" / name).write_bytes(b"A: 1\n")
    (tmp_path / "cur" / ".gitkeep").write_bytes(b"")
    assert contents(tmp_path) == [b"A: 1\n"]


@pytest.mark.parametrize("parts", [("new", "cur", "tmp"), ("new",), ("cur",)])
def test_an_empty_maildir_is_no_error(tmp_path, parts):
    for part in parts:
        (tmp_path / part).mkdir()
    assert list(read_mails(tmp_path)) == []


def test_a_pipe_in_a_folder_is_said_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "1.eml")
    (tmp_path / "2.eml").write_bytes(b"two")
    assert [(found.content, found.error) for found in read_mails(tmp_path)] == [
        (None, "not a file"),
        (b"two", None),
    ]


def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "1.eml").write_bytes(b"one")
    monkeypatch.chdir(tmp_path)
    assert [(found.label, found.content, found.error) for found in read_mails("")] == [
        ("", None, "an empty path is no file and no folder")
    ]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing", "no such file or folder"),
        ("empty", "no *.eml in this folder, and it is no Maildir (new, cur)"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, name, error):
    (tmp_path / "empty").mkdir()
    assert errors(tmp_path / name) == [error]


def test_an_unreadable_file_is_said_and_the_others_are_read(tmp_path):
    (tmp_path / "1.eml").symlink_to("nowhere")
    (tmp_path / "2.eml").write_bytes(b"two")
    (tmp_path / "3.eml").mkdir()
    assert [(found.content, found.error) for found in read_mails(tmp_path)] == [
        (None, "No such file or directory"),
        (b"two", None),
    ]


@pytest.mark.parametrize("maildir", [False, True])
def test_a_folder_that_cannot_be_read_is_said_and_the_others_are_read(
    tmp_path, monkeypatch, maildir
):
    for name in ("new", "cur") if maildir else ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.eml").write_bytes(name.encode())
    broken = tmp_path / ("new" if maildir else "b")

    def refuse(of):
        def asked(path, *rest):
            if str(path) == str(broken):
                raise OSError(5, "Input/output error", str(path))
            return of(path, *rest)

        return asked

    monkeypatch.setattr(os, "scandir", refuse(os.scandir))
    monkeypatch.setattr(os, "listdir", refuse(os.listdir))
    found = sorted((each.label, each.content, each.error) for each in read_mails(tmp_path))
    other = tmp_path / ("cur" if maildir else "a")
    assert found == sorted(
        [
            (str(other / "1.eml"), other.name.encode(), None),
            (str(broken), None, "Input/output error"),
        ]
    )


def test_a_link_to_a_folder_is_said_unless_its_mails_are_read_already(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "a", outside):
        folder.mkdir(parents=True)
        (folder / "1.eml").write_bytes(folder.name.encode())
    (inside / "again").symlink_to("a")
    (inside / "a" / "round").symlink_to("..")
    assert contents(inside) == [b"a"]
    (inside / "elsewhere").symlink_to(outside)
    assert [(each.label, each.content, each.error) for each in read_mails(inside)] == [
        (
            str(inside / "elsewhere"),
            None,
            "a link to a folder is not followed; name that folder itself",
        ),
        (str(inside / "a/1.eml"), b"a", None),
    ]


def from_stdin(given, **limits):
    return [
        (found.label, found.content) for found in read_mails("-", stdin=io.BytesIO(given), **limits)
    ]


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\n",
        b"A: 1\n\n" + FROM + b"x",
        b"From me\nA: 1\n\nFrom you\n",
        b"\n" + FROM,
        b"x" * 3_000_000,
        b"From x" * 300_000,
    ],
)
def test_a_dash_is_one_mail_on_standard_input(given):
    assert from_stdin(given) == [("-", given)]
    assert from_stdin(given, max_bytes=len(given)) == [("-", given)]
    over = list(read_mails("-", stdin=io.BytesIO(given + b"x"), max_bytes=len(given)))
    assert [(found.content, f"limit of {len(given)} bytes" in found.error) for found in over] == [
        (None, True)
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_dash_is_an_mbox_when_it_begins_as_one(end):
    def mail(number):
        return b"To: a%d@x.y" % number + end + end + b">From me" + end + b"x" * number + end

    given = b"".join(FROM.replace(b"\n", end) + mail(number) + end for number in (1, 2_000_000, 3))
    assert from_stdin(given) == [
        (f"-#{number + 1}", mail(size).replace(b">From", b"From"))
        for number, size in enumerate((1, 2_000_000, 3))
    ]
    assert [content is None for _, content in from_stdin(given, max_bytes=1000)] == [
        False,
        True,
        False,
    ]
    assert from_stdin(FROM + b"A: 1\n") == [("-#1", b"A: 1\n")]


def test_standard_input_that_cannot_be_read_is_said():
    class Broken(io.BytesIO):
        def readline(self, *_):
            raise OSError(5, "Input/output error")

    assert [
        (found.label, found.content, found.error) for found in read_mails("-", stdin=Broken())
    ] == [("-", None, "Input/output error")]


def test_a_line_of_many_times_and_no_year_is_quick(tmp_path):
    path = tmp_path / "mbox"
    content = b"A: 1\n\nx\nFrom x " + b"1:11" * 50_000 + b"\n"
    path.write_bytes(FROM + content + b"\n")
    begun = time.thread_time()
    assert contents(path) == [content]
    assert time.thread_time() - begun < 15, (
        "is each time of the line the beginning of another search?"
    )


@given(
    st.lists(
        st.sampled_from(["From ", "x", " ", "1", "12:34", "5:60", "2026", ":", "\t"]), max_size=12
    ).map("".join)
)
def test_a_separator_has_a_time_and_after_it_a_year(text):
    assert bool(_SEPARATOR.match(text.encode())) == bool(
        re.match(r"From \S.*\d{1,2}:\d{2}.*\d{4}", text)
    )


lines = st.sampled_from(
    [
        b"From x",
        b"From a@b Sat Nov 21 10:00:00 2026",
        b">From x",
        b">>From y",
        b"",
        b"body",
        b"\xff\x00",
        b"A: 1",
    ]
)


@given(
    st.lists(
        st.lists(lines, max_size=6).map(lambda parts: b"".join(part + b"\n" for part in parts)),
        max_size=4,
    )
)
def test_what_an_mboxrd_writer_wrote_comes_back_byte_for_byte(tmp_path_factory, mails):
    path = tmp_path_factory.getbasetemp() / "written.mbox"
    path.write_bytes(
        b"".join(
            FROM + re.sub(rb"^(>*From )", rb">\1", mail, flags=re.MULTILINE) + b"\n"
            for mail in mails
        )
    )
    assert contents(path) == mails
