"""The curves of `bench all`: points by rows, and a picture of them."""

from mailslice.bench.curves import curves_of, curves_svg

VIEWS = [
    {
        "bench": "view",
        "dead": 0,
        "cleanup": {"rows": 0, "plan_rows_per_second": None, "apply_rows_per_second": None},
    },
    {
        "bench": "view",
        "dead": 1000,
        "cleanup": {"rows": 1000, "plan_rows_per_second": 100, "apply_rows_per_second": 500},
    },
    {
        "bench": "view",
        "dead": 100,
        "cleanup": {"rows": 100, "plan_rows_per_second": 50, "apply_rows_per_second": 100},
    },
]
DUTIES = [
    {"bench": "counters", "mailboxes": 1, "messages": 1000, "plan_again_messages_per_second": 500},
    {"bench": "counters", "mailboxes": 1000, "messages": 1000, "plan_again_messages_per_second": 1},
    {
        "bench": "blob_gc",
        "keep": False,
        "references": 1000,
        "orphans": 50,
        "references_per_second": 100,
        "deleted_keys_per_second": None,
    },
    {
        "bench": "blob_gc",
        "keep": True,
        "references": 9,
        "orphans": 9,
        "references_per_second": 9,
        "deleted_keys_per_second": 9,
    },
]


def test_each_step_has_its_points_fewest_rows_first():
    assert curves_of([*VIEWS, *DUTIES]) == {
        "queue_cleanup plan": [(100, 2.0), (1000, 10.0)],
        "queue_cleanup apply": [(100, 1.0), (1000, 2.0)],
        "counter_repair plan": [(1000, 2.0)],
        "blob_gc references": [(1000, 10.0)],
    }


def test_the_picture_names_each_curve_and_is_the_same_each_time():
    picture = curves_svg([*VIEWS, *DUTIES])
    assert picture == curves_svg([*VIEWS, *DUTIES])
    for name in curves_of([*VIEWS, *DUTIES]):
        assert name.encode() in picture
    assert b"<svg" in curves_svg([])
