"""What a run of Spark took: CPU by step and row, memory by kind of process."""

from __future__ import annotations

import os
import time

import pytest

from mailslice.bench.spark_runs import Peak, StepCpu, peak_memory
from mailslice.model.settings import Settings

CORES = os.cpu_count() or 1


@pytest.fixture
def cpu() -> StepCpu:
    readings = iter([(10.0, 1.0), (12.0, 2.0), (12.0, 2.5), (16.0, 3.5)])
    return StepCpu(Settings(), lambda: next(readings))


def test_cpu_of_a_step_is_what_came_since_the_step_before(cpu: StepCpu) -> None:
    for step in ("plan", "check", "apply"):
        cpu.step(step)
    assert cpu.by_rows(1_000_000, "plan", "apply") == {
        "plan": {
            "cassandra": 2.0,
            "ours": 1.0,
            "rows_per_second": round(CORES * 1e6 / 3),
            "rows_per_second_of_cassandra": CORES * 500_000,
        },
        "apply": {
            "cassandra": 4.0,
            "ours": 1.0,
            "rows_per_second": CORES * 200_000,
            "rows_per_second_of_cassandra": CORES * 250_000,
        },
    }


def test_without_rows_there_is_no_cpu_of_a_row(cpu: StepCpu) -> None:
    cpu.step("plan")
    assert cpu.by_rows(0, "plan")["plan"] == {
        "cassandra": None,
        "ours": None,
        "rows_per_second": 0,
        "rows_per_second_of_cassandra": 0,
    }


def test_cassandra_elsewhere_is_unknown_and_this_process_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings()
    elsewhere = settings.model_copy(
        update={
            "cassandra": settings.cassandra.model_copy(update={"contact_points": ("192.0.2.1",)})
        }
    )
    # Those of another test, which end meanwhile, would be taken from ours.
    monkeypatch.setattr("psutil.Process.children", lambda *_, **__: [])
    cpu = StepCpu(elsewhere)
    start = time.process_time()
    while time.process_time() < start + 0.1:  # the kernel counts in hundredths, rounded down
        pass
    cpu.step("plan")
    plan = cpu.by_rows(1, "plan")["plan"]
    assert plan["ours"] > 0
    assert (plan["cassandra"], plan["rows_per_second"], plan["rows_per_second_of_cassandra"]) == (
        None,
        None,
        None,
    )


def test_memory_is_told_by_kind_and_the_heap_beside_it() -> None:
    mib = 1024 * 1024
    found = Peak("1g", total=30 * mib, jvm=20 * mib, python=11 * mib).as_json()
    assert found == {"peak_mib": 30, "peak_jvm_mib": 20, "jvm_heap": "1g", "peak_python_mib": 11}


def test_memory_of_a_process_without_spark_is_python_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "psutil.Process.children", lambda *_, **__: []
    )  # another test's Spark may live beside it
    with peak_memory(Settings(), every=0.01) as peak:
        while not peak.total:
            time.sleep(0.01)
    assert peak.python > 0
    assert peak.jvm == 0
