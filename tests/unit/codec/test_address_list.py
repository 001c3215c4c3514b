"""Lists of addresses: every one of them, and none that nobody wrote."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mailslice.codec.address_list import parse_addresses
from mailslice.codec.addresses import is_address

patient = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
"""Long names take their time where the machine is busy."""


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        # RFC 5322, appendix A
        (
            "Mary Smith <mary@x.test>, jdoe@example.org, Who? <one@y.test>",
            ["mary@x.test", "jdoe@example.org", "one@y.test"],
        ),
        (
            '<boss@nil.test>, "Giant; \\"Big\\" Box" <sysservices@example.net>',
            ["boss@nil.test", "sysservices@example.net"],
        ),
        (
            "A Group:Ed Jones <c@a.test>,joe@where.test,John <jdoe@one.test>;",
            ["c@a.test", "joe@where.test", "jdoe@one.test"],
        ),
        ("Undisclosed recipients:;", []),
        ("(Empty list)(start)Hidden recipients  :(nobody(that I know))  ;", []),
        ("Pete(A nice \\) chap) <pete(his account)@silly.test(his host)>", ["pete@silly.test"]),
        (
            (
                "A Group(Some people) :Chris Jones <c@(Chris's host.)public.example>, "
                "joe@example.org, John <jdoe@one.test> (my friend); (the end)"
            ),
            ["c@public.example", "joe@example.org", "jdoe@one.test"],
        ),
        (
            "Mary Smith <@node.test:mary@example.net>, , jdoe@test  . example",
            ["mary@example.net", "jdoe@test.example"],
        ),
        ("John Doe <jdoe@machine(comment).  example>", ["jdoe@machine.example"]),
        # obsolete forms, literals and quotes
        ("a . b @ c . d", ["a.b@c.d"]),
        ("<@a.b,@c.d:e@f.g>", ["e@f.g"]),
        ('a@[IPv6:::1], "x, y"@[192.0.2.1]', ["a@[IPv6:::1]", '"x, y"@[192.0.2.1]']),
        ('"a"@b.c, "a.b"@b.c, a."b c".d@b.c', ["a@b.c", "a.b@b.c", '"a.b c.d"@b.c']),
        (
            '"a\\"b"@c.d, "\\a b"@c.d, <"a>b,c;d:(e"@c.d>',
            ['"a\\"b"@c.d', '"a b"@c.d', '"a>b,c;d:(e"@c.d'],
        ),
        ('"x@y.z" <a@b.c>, x@y.z <d@e.f>, (x@y.z) g@h.i', ["a@b.c", "d@e.f", "g@h.i"]),
        # what other programs write
        ("a@b.c; d@e.f", ["a@b.c", "d@e.f"]),
        ('"B, A" <a@b.c>; "E; D" <d@e.f>;', ["a@b.c", "d@e.f"]),
        ("friends: a@b.c; d@e.f", ["a@b.c", "d@e.f"]),
        ("<a@b.c> <d@e.f>", ["a@b.c", "d@e.f"]),
        ('"x" <a@b.c> y <d@e.f>', ["a@b.c", "d@e.f"]),
        ("a@b.c d@e.f", ["a@b.c", "d@e.f"]),
        ("<a@b.c, d@e.f>", ["a@b.c", "d@e.f"]),
        ("mailto:a@b.c", ["a@b.c"]),
        ("Foo a@b.c, Dr. Bar d@e.f", ["a@b.c", "d@e.f"]),
        ("=?utf-8?q?Last,_First?= <a@b.c>, =?utf-8?q?Re:_:-)_(?= <d@e.f>", ["a@b.c", "d@e.f"]),
        ("Foo [x, y] <a@b.c>, Foo [list: z] <d@e.f>", ["a@b.c", "d@e.f"]),
        ('\\"A, B\\" <a@b.c>, d@e.f', ["a@b.c", "d@e.f"]),
        # what is broken hides nothing
        ('5" disk <a@b.c>, D <d@e.f>, g@h.i', ["a@b.c", "d@e.f", "g@h.i"]),
        ("O(Brien <a@b.c>, d@e.f", ["a@b.c", "d@e.f"]),
        ("a@b.c (was x@y.z, D <d@e.f>, g@h.i", ["a@b.c", "d@e.f", "g@h.i"]),
        ("a@b.c (x (y), <d@e.f> (z)", ["a@b.c", "d@e.f"]),
        (
            'a@b <mailto:a@b>, "x" <c@d>, e@f <MAILTO:e@f>, < mailto: g@h>',
            ["a@b", "c@d", "e@f", "g@h"],
        ),
        ("<(x) mailto (y)(z) : (v) a@b>, <mailto:(x)mailto:c@d>, <mailto x:e@f>", ["a@b", "c@d"]),
        ("a@b.c), d@e.f, (x) g@h.i) , )j@k.l", ["a@b.c", "d@e.f", "g@h.i", "j@k.l"]),
        ("<a@b.c)>, ) d@e.f)) )", ["a@b.c", "d@e.f"]),
        ("a@b.c foo@, @foo d@e.f, g@@h j@k.l", ["a@b.c", "d@e.f", "j@k.l"]),
        ("a@b.c d@e@f, g@h.i", ["a@b.c", "g@h.i"]),
        ("a@b:25, c@d", ["a@b", "c@d"]),
        ("a@b: c@d, e@f", ["a@b", "c@d", "e@f"]),
        ("x@y <a@b>: c@d", ["a@b", "c@d"]),
        ("Foo <a@b.c, d@e.f", ["a@b.c", "d@e.f"]),
        ("<<a@b.c>>, d@e.f>, >g@h.i", ["a@b.c", "d@e.f", "g@h.i"]),
        ("<a@@b.c>, <>, <@>, @, a@, @b, <@b.c>, d@e.f", ["d@e.f"]),
        # and nothing is made up of it
        ("Foo <bo b@x.y>, <bob@x.y z>, a@b.c", ["a@b.c"]),
        ("Mr J. doe@x.y, me @ home.now or @x.y, a@b.c", ["a@b.c"]),
        ("Mr J. doe@x.y g@h.i, a@b .c d@e.f", ["g@h.i", "d@e.f"]),
        ("x)a@b.c, x>a@b.c, a@b)c, d@e.f", ["d@e.f"]),
        ("<mailto a@b.c>, <x:a@b.c>, <mailto::a@b.c>, d@e.f", ["d@e.f"]),
        ("a@b.c (formerly x@y.z, d@e.f; g: h@i.j", ["a@b.c"]),
        ('a@b.c, "formerly x@y.z, d@e.f', ["a@b.c"]),
        ("=?utf-8?Q?X_<p@q.r>?= <c@d>", ["c@d"]),
        ("=?utf-8?Q?x@y.z,_p@q.r?= <c@d>, e@f", ["c@d", "e@f"]),
        ('=?utf-8?q?"(:;?= =?x?B?p@q.r?= <c@d>, =?x?b?p@q.r?=, e@f', ["c@d", "e@f"]),
        ('"a"b@c.d, "a""b"@c.d, a."b"@c.d', ["a.b@c.d"]),
        ("Foo <a@b.c", ["a@b.c"]),
        ('"Foo <a@b.c', []),
    ],
)
def test_lists_of_addresses(value, addresses):
    assert parse_addresses(value) == addresses


@pytest.mark.parametrize("size", [20_001, 300_000])
def test_a_name_of_any_length_is_a_name(size):
    assert parse_addresses(f'"{"x, " * size}" <a@b.c>, ({"y@z.w, " * size}) d@e.f') == [
        "a@b.c",
        "d@e.f",
    ]


atoms = st.text(st.sampled_from("abz019+-_=?!#'é用"), min_size=1, max_size=8)
locals_ = st.lists(atoms, min_size=1, max_size=3).map(".".join)
quoted_locals = (
    st.text(st.sampled_from('ab ,;:<>()@.[]"\\é'), min_size=1, max_size=8)
    # A text that is a quoted string itself may have escapes that it needs not.
    .filter(lambda text: not (text.startswith('"') and "\\" in text))
    .map(
        lambda text: (
            text
            if is_address(f"{text}@b")
            else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        )
    )
)
labels = st.text(st.sampled_from("abz019-é例"), min_size=1, max_size=8)
domains = st.lists(labels, min_size=1, max_size=3).map(".".join) | st.sampled_from(
    ["[192.0.2.1]", "[IPv6:::1]"]
)
addresses = st.builds("{}@{}".format, locals_ | quoted_locals, domains)

anything = st.text(
    st.sampled_from('aé ,;:<>()@.[]"\\=?\t') | st.characters(exclude_categories=["Cs"]), max_size=30
)
longer = st.tuples(anything, st.sampled_from([1, 1, 1, 3000])).map(
    lambda given: given[0] * given[1]
)
strings = longer.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
escaped = longer.map(lambda text: "".join("\\" + each if each in "()\\" else each for each in text))
comments = st.recursive(
    escaped, lambda inner: st.builds("{}({}){}".format, escaped, inner, escaped), max_leaves=4
).map("({})".format)
encoded = st.text(st.sampled_from('abc=_0F@<>,;:"('), max_size=20).map(
    "=?utf-8?q?{}?=".format
) | st.text(st.sampled_from("abc+/="), max_size=20).map("=?x?B?{}?=".format)
words = st.lists(strings | encoded | comments | atoms, max_size=3).map(" ".join)
blanks = st.sampled_from(["", " ", "  ", "\t "])
mailboxes = addresses.flatmap(
    lambda address: (
        st.tuples(
            st.just(address),
            st.builds(
                "{}{}<{}{}{}>{}".format,
                words,
                blanks,
                blanks,
                st.just(address),
                blanks,
                blanks | comments,
            )
            | comments.map(f"{address} ".__add__),
        )
        | st.just((address, address))
    )
)
groups = st.tuples(words, st.lists(mailboxes, max_size=3)).map(
    lambda given: ([a for a, _ in given[1]], f"{given[0]} x: {','.join(t for _, t in given[1])} ;")
)
entries = mailboxes.map(lambda given: ([given[0]], given[1])) | groups


@patient
@given(st.lists(entries, max_size=5), st.sampled_from([",", " , ", ";", ",,"]))
def test_any_list_gives_back_exactly_its_addresses(listed, separator):
    assert parse_addresses(separator.join(text for _, text in listed)) == [
        address for found, _ in listed for address in found
    ]


marks = [
    "<",
    ">",
    "(",
    "@",
    ",",
    ";",
    ":",
    "a",
    "b.c",
    " ",
    ".",
    "=?utf-8?q?x?=",
    "=?x?b?a@b.c,?=",
    "[",
    "]",
]


def made_of(parts):
    return st.lists(st.sampled_from(parts), max_size=30).map("".join)


@patient
@given(made_of([*marks, ")", '"', "\\"]))
def test_whatever_the_list_only_addresses_come_of_it(value):
    assert all(map(is_address, parse_addresses(value)))


@patient
@given(st.lists(made_of(marks), max_size=4))
def test_what_is_broken_hides_no_address_in_brackets_behind_it(broken):
    value = "".join(f"{text},<n{number}@x.y>," for number, text in enumerate(broken))
    assert [address for address in parse_addresses(value) if address.endswith("@x.y")] == [
        f"n{number}@x.y" for number in range(len(broken))
    ]


@pytest.mark.parametrize(
    "piece",
    ["=?x?q?", "=?x,", "=?x?q?,?=", "(", ")", "a)b@c.d ", "a@ ", "a@b:", "<a@b.c", "=?x?q?a@b,"],
)
def test_a_long_list_of_mistakes_takes_no_more_than_its_length(piece):
    """The square of it would take minutes of CPU."""
    started = time.thread_time()
    assert all(is_address(address) for address in parse_addresses(piece * 50_000))
    assert time.thread_time() - started < 15


@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [
        *(
            ("<", piece, ">")
            for piece in (
                "a:",
                "a@b:",
                "mailto:",
                "mailto :",
                "x(:)",
                "@",
                "@a:",
                '"a":',
                "a@b,:",
                "=?x?q?:?=:",
            )
        ),
        ("<mailto" + "()" * 50_000 + "x", ":", ">"),
        ("<" + "()" * 50_000 + "mailto", "():", ">"),
        ("<a" * 50_000, ">", ""),
        ("<@", ":", "a@b>"),
    ],
)
def test_in_brackets_a_long_list_of_mistakes_takes_no_more_than_its_length_either(
    before, piece, after
):
    started = time.thread_time()
    assert all(is_address(address) for address in parse_addresses(before + piece * 100_000 + after))
    assert time.thread_time() - started < 15
