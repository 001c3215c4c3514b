"""The S3 servers that `make bench` measures beside its own."""

import json
from pathlib import Path

from mailslice.bench.servers import Server
from stack import benching, s3
from stack.settings import Profile, stack_settings


def test_a_tuned_server_and_one_as_it_comes_have_ports_and_folders_of_their_own(
    monkeypatch, tmp_path
):
    for module, name, value in (
        (s3, "part", Path("/parts")),
        (s3, "java", Path("/java/bin/java")),
        (benching, "java_home", Path("/java")),
        (benching, "_certificate", (Path("/keys"), Path("/certificate"))),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    environment = {"MAILSLICE_STACK_TEST_STATE": str(tmp_path / "state")}
    stack = stack_settings(Profile.TEST, environment, tmp_path)
    files = benching.s3_servers(stack)
    tuned, untuned = (Server.of_file(file) for file in files)
    assert (tuned.name, untuned.name) == ("tuned", "untuned")
    assert "-Xmx2g" in tuned.command
    assert "-Xmx512m" in untuned.command
    assert "-XX:+UseSerialGC" not in untuned.command
    threads = [
        next(line for line in _properties(file) if "max-threads" in line).rpartition("=")[2]
        for file in files
    ]
    assert threads == ["32", "200"]
    addresses = {server.endpoint for server in (tuned, untuned)}
    addresses |= {server.secure for server in (tuned, untuned)}
    assert len(addresses | {f"http://127.0.0.1:{stack.ports.s3_port}"}) == 5
    assert {json.loads(file.read_text())["ca"] for file in files} == {"/certificate"}
    assert tuned.environment == {"JAVA_HOME": "/java", "MAILSLICE_STACK_OWNER": str(stack.state)}


def _properties(server_file):
    return (server_file.parent / "s3proxy.conf").read_text(encoding="utf-8").splitlines()
