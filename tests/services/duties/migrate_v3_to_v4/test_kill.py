"""kill -9 inside plan and apply.

V3 is whole, and the next run ends with the tables of an undisturbed one.
"""

import pytest

from mailslice.model.mail import EnqueueId


def live_rows(old) -> set[EnqueueId]:
    old.start_at(-1)
    rows = [old.insert(number) for number in (-1, -1, 0, 0)]
    old.insert(0, dead=True)
    return {row.enqueue_id for row in rows}


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    "point",
    [
        "apply:inside-copies",
        *(
            pytest.param(point, marks=SOAK)
            for point in ("plan:after-read", "apply:locked", "apply:after-batch")
        ),
    ],
)
def test_the_run_after_a_kill_ends_in_the_same_state(old, point):
    live = live_rows(old)
    before = old.v3
    request = old.request()
    step = point.partition(":")[0]
    if step == "apply":
        old.steps(request, "plan", "check")
    old.kill(step, request, point)
    assert set(old.v4) <= live
    assert old.mail_queue.size() == 4
    old.let_the_locks_run_out()
    report = old.run()
    assert (report["verified"], report["failed"]) == (4, 0)
    assert old.v3 == before
    assert old.v4 == {each: before[each] for each in live}


@SOAK
def test_the_same_plan_applied_again_after_a_kill_has_the_same_numbers(old):
    live = live_rows(old)
    request = old.request()
    old.steps(request, "plan", "check")
    old.kill("apply", request, "apply:inside-copies")
    old.let_the_locks_run_out()
    report = old.steps(request, "apply", "verify", "report")
    assert (report["status"], report["copied"], report["skipped"], report["verified"]) == (
        "done",
        4,
        1,
        4,
    )
    assert set(old.v4) == live
