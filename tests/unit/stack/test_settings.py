from pathlib import Path

import pytest

from mailslice.model.errors import BadSetting
from stack.settings import Ports, Profile, stack_settings, stack_variables


def test_the_two_stacks_share_no_port_and_no_folder(tmp_path: Path) -> None:
    run, test = (stack_settings(profile, {}, tmp_path) for profile in Profile)
    assert set(run.ports.model_dump().values()).isdisjoint(test.ports.model_dump().values())
    assert (run.state, test.state) == (tmp_path / ".state/run", tmp_path / ".state/test")


def test_airflow_of_make_run_is_where_people_look_for_it() -> None:
    assert stack_settings(Profile.RUN, {}).ports.airflow_port == 8080


def test_default_ports_are_below_those_that_linux_hands_out() -> None:
    for profile in Profile:
        assert max(stack_settings(profile, {}).ports.model_dump().values()) < 32768


def test_a_variable_moves_the_port_of_its_own_stack_alone() -> None:
    environ = {"MAILSLICE_STACK_S3_PORT": "21000", "MAILSLICE_STACK_TEST_S3_PORT": "21001"}
    assert stack_settings(Profile.RUN, environ).ports.s3_port == 21000
    assert stack_settings(Profile.TEST, environ).ports.s3_port == 21001


def test_sizes_and_versions_are_of_both_stacks() -> None:
    environ = {"MAILSLICE_STACK_CASSANDRA_HEAP": "700m"}
    assert [stack_settings(profile, environ).sizes.cassandra_heap for profile in Profile] == [
        "700m",
        "700m",
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MAILSLICE_STACK_S3_PORT", "x", "MAILSLICE_STACK_S3_PORT='x'"),
        ("MAILSLICE_STACK_S3_PORT", "70000", "less than or equal to 65535"),
        ("MAILSLICE_STACK_CASSANDRA_HEAP", "lots", "MAILSLICE_STACK_CASSANDRA_HEAP='lots'"),
        (
            "MAILSLICE_STACK_S3_PORT",
            "17042",
            "MAILSLICE_STACK_S3_PORT=17042 is the port of MAILSLICE_STACK_CASSANDRA_PORT",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_variable(name: str, value: str, said: str) -> None:
    with pytest.raises(BadSetting) as raised:
        stack_settings(Profile.RUN, {name: value})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MAILSLICE_STACK_S3_PROT", "MAILSLICE_STACK_S3_PORT"),
        ("MAILSLICE_STACK_TEST_RABBIT_PORT", "MAILSLICE_STACK_TEST_RABBITMQ_PORT"),
        ("MAILSLICE_STACK_STAT", "MAILSLICE_STACK_STATE"),
    ],
)
def test_an_unknown_name_is_refused_by_both_stacks_and_the_nearest_is_named(
    name: str, meant: str
) -> None:
    for profile in Profile:
        with pytest.raises(BadSetting) as raised:
            stack_settings(profile, {name: "1"})
        assert str(raised.value) == (
            f"{name} (in the environment) is no setting of the local stack. Did you mean {meant}?"
        )


def test_a_name_that_is_near_to_none_is_refused_alone() -> None:
    with pytest.raises(
        BadSetting,
        match=r"^MAILSLICE_STACK_XQZ \(in the environment\) is no setting of the local stack$",
    ):
        stack_settings(Profile.RUN, {"MAILSLICE_STACK_XQZ": ""})


def test_every_name_of_the_docs_is_read_and_so_is_what_the_stack_tells_its_own_processes() -> None:
    values = {name: str(default) for name, (default, _) in stack_variables().items()}
    ports = {
        f"MAILSLICE_STACK_TEST_{name.upper()}": str(20000 + number)
        for number, name in enumerate(Ports.model_fields)
    }
    environ = {
        **values,
        **ports,
        "MAILSLICE_STACK_TEST_STATE": "/x",
        "MAILSLICE_STACK_OWNER": "/y",
        "MAILSLICE_STACK_SCHEDULES": "off",
    }
    assert stack_settings(Profile.TEST, environ).ports.cassandra_port == 20000
    assert stack_settings(Profile.RUN, environ).ports == Ports()


def test_the_variable_that_changes_a_port_is_that_of_the_stack() -> None:
    assert stack_settings(Profile.RUN, {}).variable("s3_port") == "MAILSLICE_STACK_S3_PORT"
    assert stack_settings(Profile.TEST, {}).variable("s3_port") == "MAILSLICE_STACK_TEST_S3_PORT"
    assert stack_settings(Profile.TEST, {}).variable("disk_mib") == "MAILSLICE_STACK_DISK_MIB"


def test_every_port_is_listed_for_the_docs() -> None:
    assert {f"MAILSLICE_STACK_{name.upper()}" for name in Ports.model_fields} <= set(
        stack_variables()
    )
