"""Which options of Spark a session of our own has, and what is sent to executors."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mailslice.engine.spark_conf import zip_package
from mailslice.engine.spark_session import _choose_python, _options
from mailslice.model.settings import load_settings

CLUSTERS = ("spark://master:7077", "yarn", "k8s://https://10.0.0.1:6443")
THEIRS = ("spark.ui.enabled", "spark.sql.shuffle.partitions", "spark.driver.memory")
THEIRS += ("spark.driver.extraJavaOptions", "spark.executorEnv.PYTHONPATH", "spark.local.dir")
THEIRS += ("spark.driver.bindAddress", "spark.driver.host", "spark.executor.memory")
# Its warnings say that no executor takes the work.
THEIRS += ("spark.log.level",)


def options(scratch, master, **more):
    environ = {"MAILSLICE_DUTY_SPARK_MASTER": master} | {
        f"MAILSLICE_DUTY_SPARK_{name}": value for name, value in more.items()
    }
    return _options(load_settings(environ, Path("/nonexistent")), scratch)


def test_a_local_master_gets_small_defaults(tmp_path):
    given = options(tmp_path, "local[2]")
    assert (given["spark.sql.shuffle.partitions"], given["spark.ui.enabled"]) == ("8", "false")
    assert (given["spark.driver.memory"], given["spark.log.level"]) == ("1g", "OFF")
    assert "spark.submit.pyFiles" not in given


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_cluster_keeps_its_own_options(tmp_path, master):
    given = options(tmp_path, master)
    assert [key for key in THEIRS if key in given] == []
    assert given["spark.sql.session.timeZone"] == "UTC"
    assert given["spark.submit.pyFiles"] == str(tmp_path / "mailslice.zip")


@pytest.mark.parametrize("master", ["local[2]", *CLUSTERS])
def test_what_you_set_wins(tmp_path, master):
    own = "spark.sql.shuffle.partitions=400,spark.ui.enabled=true,spark.jars=a.jar,b.jar"
    given = options(tmp_path, master, CONF=own, DRIVER_MEMORY="3g", DRIVER_OPTIONS="-Da=b")
    assert given["spark.sql.shuffle.partitions"] == "400"
    assert given["spark.ui.enabled"] == "true"
    assert given["spark.jars"] == "a.jar,b.jar"
    assert given["spark.driver.memory"] == "3g"
    assert given["spark.driver.extraJavaOptions"].split(" ")[-1] == "-Da=b"


def test_your_files_go_along_with_the_package(tmp_path):
    given = options(tmp_path, "yarn", CONF='{"spark.submit.pyFiles": "mine.zip"}')
    assert given["spark.submit.pyFiles"] == f"{tmp_path / 'mailslice.zip'},mine.zip"


@pytest.mark.parametrize(
    ("master", "chosen", "environ", "python"),
    [
        ("local[*]", None, {}, sys.executable),
        ("local[*]", None, {"PYSPARK_PYTHON": "/p"}, "/p"),
        ("local[*]", "./environment/bin/python", {}, sys.executable),
        ("yarn", None, {}, None),
        ("yarn", "./environment/bin/python", {"PYSPARK_PYTHON": "/p"}, "./environment/bin/python"),
    ],
)
def test_executors_of_a_cluster_run_the_python_that_you_named(
    monkeypatch, master, chosen, environ, python
):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    _choose_python(master, chosen)
    assert os.environ.get("PYSPARK_PYTHON") == python
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


SHOW = "import mailslice.engine.frames as f, mailslice.stores, sys; print(f.__file__)"


def test_the_zip_is_imported_before_what_is_installed_and_zips_itself(tmp_path):
    file = zip_package(tmp_path)
    code = f"{SHOW}; from mailslice.engine.spark_conf import zip_package; print(zip_package(None))"
    environ = {**os.environ, "PYTHONPATH": str(file)}
    words = [sys.executable, "-c", code]
    said = subprocess.check_output(words, env=environ, cwd=tmp_path, text=True)
    assert said.split() == [f"{file}/mailslice/engine/frames.py", str(file)]
    assert file.stat().st_size < 3_000_000
    assert "mailslice/py.typed" in zipfile.ZipFile(file).namelist()
