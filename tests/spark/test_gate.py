"""The gate over a plan's rows in Spark: read by its workers, once, however many rules there are."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailslice.checks.data_docs import Docs
from mailslice.checks.expectations import Expectation, Frame
from mailslice.checks.gate import evaluate
from mailslice.engine.frames import InProcess
from mailslice.engine.plan_rows import plan_rows
from mailslice.engine.spark_session import spark_session
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import PlanRefused
from mailslice.model.settings import S3Settings, load_settings
from tests.contracts.gates import GOOD, GateContract

SCHEMA = pa.schema([("name", pa.string()), ("at", pa.int64())])
AT = pa.array([1_000, 2_000], pa.timestamp("ms", "UTC"))


@pytest.fixture(scope="module")
def spark():
    return spark_session(
        load_settings({"MAILSLICE_DUTY_SPARK_MASTER": "local[2]"}, Path("/nonexistent")), "tests"
    )


@pytest.fixture(params=["in Spark", "in this process"])
def engine(request, spark):
    return spark if request.param == "in Spark" else InProcess()


@pytest.fixture
def location(tmp_path):
    for file in ("one", "two"):
        table = pa.table({"name": [f"{file} a", f"{file} b"], "at": AT, "more": [1, 2]})
        pq.write_table(table, tmp_path / f"{file}.parquet")
    return Artifacts(str(tmp_path), S3Settings())


def instants(batch):
    """Times as integers, in their own unit since the epoch."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def frame(engine, location, files, derive=instants):
    rules = [
        Expectation.unique("name", "No name twice."),
        Expectation.between("at", 1_000, 2_000, "At its time."),
    ]
    return Frame("plan", plan_rows(engine, location, files, SCHEMA, derive), rules)


def findings(location, *frames):
    return evaluate("check", frames, Docs(location, "queue_cleanup", "spool", "r1")).findings


class TestSparkFrame(GateContract):
    @pytest.fixture
    def rows(self, spark):
        from pyspark.sql.pandas.types import from_arrow_schema

        def made(columns):
            kinds = {name: pa.array(values).type for name, values in GOOD.items()}
            schema = pa.schema([(name, kinds[name]) for name in columns])
            rows = pa.table(columns, schema=schema).to_pylist()
            return spark.createDataFrame(
                [tuple(row.values()) for row in rows], from_arrow_schema(schema)
            )

        return made


def test_rows_of_all_files_are_judged_in_spark_as_in_this_process(engine, location):
    found = findings(location, frame(engine, location, ["one.parquet", "two.parquet"]))
    assert all(each.success for each in found)
    assert {each.rows for each in found} == {4}
    found = findings(location, frame(engine, location, ["one.parquet", "one.parquet"]))
    assert [each.sentence for each in found if not each.success] == ["No name twice."]


def test_what_is_derived_is_judged(engine, location):
    def late(batch):
        later = pa.compute.add(instants(batch).column("at"), 5)
        return pa.RecordBatch.from_arrays([batch.column("name"), later], names=["name", "at"])

    found = findings(location, frame(engine, location, ["one.parquet"], late))
    assert [each.failed_rows for each in found if not each.success] == [1]


@pytest.mark.parametrize("fault", ["gone", "other columns", "no Parquet", "damaged"])
def test_a_file_that_is_not_the_plans_any_more_is_refused_by_name(
    engine, location, tmp_path, fault
):
    path = tmp_path / "two.parquet"
    if fault == "gone":
        path.unlink()
    elif fault == "other columns":
        pq.write_table(pa.table({"name": ["x"]}), path)
    elif fault == "damaged":
        content = bytearray(path.read_bytes())
        content[4:60] = bytes(56)  # the first page, not the footer
        path.write_bytes(content)
    else:
        path.write_bytes(b"PAR1" * 100)
    with pytest.raises(PlanRefused, match="two"):
        findings(location, frame(engine, location, ["one.parquet", "two.parquet"]))


def test_spark_reads_each_file_once_however_many_rules_there_are(spark, location, tmp_path):
    log = tmp_path / "reads"

    def counting(batch):
        with log.open("a", encoding="utf-8") as file:
            file.write("read\n")
        return instants(batch)

    findings(location, frame(spark, location, ["one.parquet", "two.parquet"], counting))
    assert log.read_text(encoding="utf-8").count("read") == 2
