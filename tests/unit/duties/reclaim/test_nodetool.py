"""The operator's command: how it is read, what it is given, how it ends."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.duties.reclaim.nodetool import CommandFailed, Nodetool, by_hand, collect, flush
from mailslice.model.errors import BadSetting
from mailslice.model.settings import load_settings

SOON = timedelta(seconds=30)


def python(code):
    return Nodetool((sys.executable, "-c", code))


def test_no_setting_is_no_command():
    assert Nodetool.parse("") is None
    assert Nodetool.parse("   ") is None


def test_the_host_is_put_wherever_it_is_named_and_nothing_else_is_touched():
    tool = Nodetool.parse("ssh -o 'User=a b' {host} nodetool -h {host}:7199 ${HOME} {port}")
    assert tool.names_host
    wanted = [
        "ssh",
        "-o",
        "User=a b",
        "10.0.0.7",
        "nodetool",
        "-h",
        "10.0.0.7:7199",
        "${HOME}",
        "{port}",
        "flush",
        "james",
    ]
    assert tool.command("10.0.0.7", ["flush", "james"]) == wanted


def test_a_command_without_a_host_goes_to_one_node_only():
    assert not Nodetool.parse("nodetool").names_host


def test_a_quote_that_never_ends_is_named():
    with pytest.raises(BadSetting, match=r"MAILSLICE_NODETOOL=.ssh '.*No closing quotation"):
        load_settings({"MAILSLICE_NODETOOL": "ssh '"}, state_file=Path("/nonexistent"))


def test_what_it_is_given():
    assert flush("james", ["a", "b"]) == ["flush", "james", "a", "b"]
    assert collect("james", ["a", "b"]) == [
        "garbagecollect",
        "-g",
        "ROW",
        "-j",
        "1",
        "james",
        "a",
        "b",
    ]
    assert (
        by_hand("james", ["a"])
        == "nodetool flush james a && nodetool garbagecollect -g ROW -j 1 james a"
    )


def failure(tool, command="flush", timeout=SOON):
    with pytest.raises(CommandFailed) as raised:
        tool.run("h", [command], timeout)
    return raised.value


def test_an_end_with_0_is_no_problem():
    python("print('fine')").run("h", ["flush"], SOON)


def test_an_end_with_another_code_says_its_last_words():
    error = failure(python("import sys; print('out'); sys.exit('no\\n such   table')"))
    assert str(error) == "flush ended with 1: no such table"
    assert not error.timed_out


def test_bytes_that_are_no_text_do_no_harm():
    error = failure(python("import os, sys; os.write(2, bytes([255, 65])); sys.exit(3)"))
    assert str(error).startswith("flush ended with 3: ")


def test_a_command_that_takes_too_long_is_given_up_and_that_is_another_thing():
    sleeper = python("import time; time.sleep(60)")
    error = failure(sleeper, "garbagecollect", timedelta(seconds=0.2))
    assert error.timed_out
    assert "did not end within" in str(error)


def test_a_program_that_is_not_there_is_named():
    error = failure(Nodetool(("/nowhere/nodetool",)))
    assert "'/nowhere/nodetool' cannot be started: No such file" in str(error)


def test_it_cannot_wait_for_somebody_to_type():
    python("import sys; sys.exit(len(sys.stdin.read()))").run("h", ["flush"], SOON)
