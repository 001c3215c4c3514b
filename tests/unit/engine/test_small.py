"""Small work is done in the process.

What is left once it turns out large goes to Spark, each key once.
"""

import pytest

from mailslice.engine import frames
from mailslice.engine.frames import InProcess, SmallFirst, run_on_keys
from mailslice.maintenance.engine import Engine, TooLarge
from mailslice.model.settings import Settings


class Session:
    """Spark, as far as `run_on_keys` shows it: the keys that it was given."""

    def __init__(self, monkeypatch):
        self.keys = []
        here = frames.run_on_keys

        def given(spark, keys, work, *rows):
            if spark is self:
                self.keys += keys
                spark = InProcess()
            return here(spark, keys, work, *rows)

        monkeypatch.setattr(frames, "run_on_keys", given)


def weigh(batches):
    for keys in batches:
        yield from ((key, 10) for key in keys)


def found(small, keys):
    return [key for key, _ in run_on_keys(small, keys, weigh, lambda result: result[1])]


def test_small_work_starts_nothing():
    small = SmallFirst(50, lambda: pytest.fail("Spark was started"))
    assert found(small, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert small.done == 40


def test_what_is_left_of_large_work_goes_to_the_session_once(monkeypatch):
    session = Session(monkeypatch)
    small = SmallFirst(50, lambda: session)
    assert found(small, list(range(20))) == list(range(20))
    assert session.keys == list(range(7, 20))
    assert found(small, [30]) == [30]
    assert session.keys[-1] == 30


def engine(small_rows=50, plan=None):
    return Engine(Settings(), "test", small_rows, plan, in_process=True)


def test_a_process_that_may_start_no_spark_says_that_the_work_is_too_large():
    with pytest.raises(TooLarge):
        found(engine().session(), list(range(20)))
    with pytest.raises(TooLarge):
        engine(small_rows=0).session()


def test_work_whose_last_keys_are_heavy_is_large_for_the_steps_after_it():
    made = engine(small_rows=50)
    assert found(made.session(), list(range(7))) == list(range(7))
    assert made.used == "Spark"


def test_the_steps_after_a_plan_go_by_what_it_came_to():
    made = engine()
    found(made.session(), [1, 2])
    assert made.used == "process"
    assert isinstance(engine(plan={"engine": "process"}).session(), InProcess)
    with pytest.raises(TooLarge):
        engine(plan={"engine": "Spark"}).session()
