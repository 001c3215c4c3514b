"""YARN as two local processes, from Maven's jars, for tests: a ResourceManager and a NodeManager.

The file system is the machine's. Containers run as the NodeManager's user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import urllib3

from stack.parts import java, java_home, part
from stack.program import Program, answers_http
from stack.settings import Sizes

_HOST = "127.0.0.1"
_SERVER = "org.apache.hadoop.yarn.server"
_PORTS = (
    "yarn.resourcemanager.webapp.address",
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.admin.address",
    "yarn.nodemanager.address",
    "yarn.nodemanager.localizer.address",
    "yarn.nodemanager.webapp.address",
    "yarn.nodemanager.collector-service.address",
)
PORTS = len(_PORTS)
"""How many ports the two listen on."""
_LOG4J = """\
log4j.rootLogger=WARN, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def yarn(folder: Path, ports: Sequence[int], sizes: Sizes) -> tuple[Program, Program]:
    """Writes the configuration to `folder`/conf; the ResourceManager and the NodeManager.

    `folder`/logs gets a folder an application, which stays for five minutes after its end. A client
    sets HADOOP_CONF_DIR to `folder`/conf.
    """
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    addresses = {name: f"{_HOST}:{port}" for name, port in zip(_PORTS, ports[:PORTS], strict=True)}
    site = {
        "yarn.resourcemanager.hostname": _HOST,
        "yarn.nodemanager.hostname": _HOST,
        **addresses,
        "yarn.nodemanager.local-dirs": f"{folder}/local",
        "yarn.nodemanager.log-dirs": f"{folder}/logs",
        "yarn.nodemanager.resource.memory-mb": "5120",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
        "yarn.nodemanager.delete.debug-delay-sec": "300",
    }
    scheduler = {
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
    }
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "hadoop")}
    for name, values in (("core", core), ("yarn", site)):
        _write(conf / f"{name}-site.xml", values)
    _write(conf / "capacity-scheduler.xml", scheduler)
    (conf / "log4j.properties").write_text(_LOG4J, encoding="utf-8")
    web = f"http://{addresses['yarn.resourcemanager.webapp.address']}/ws/v1/cluster"
    names = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
    healthy = (lambda: answers_http(f"{web}/info"), lambda: _node_runs(web))
    jars = f"{conf}:{part('yarn', sizes)}/*"
    options = ("-Xmx384m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", jars)
    manager, node = (
        Program(
            name=name.rpartition(".")[2].lower(),
            command=(str(java()), *options, f"{_SERVER}.{name}"),
            environment={
                "JAVA_HOME": str(java_home()),
                "USER": "mailslice",
                "HADOOP_CONF_DIR": str(conf),
            },
            healthy=question,
        )
        for name, question in zip(names, healthy, strict=True)
    )
    return manager, node


def _node_runs(web: str) -> str | None:
    """None when one NodeManager is RUNNING, else why not."""
    reason = answers_http(f"{web}/nodes")
    if reason is not None:
        return reason
    nodes = urllib3.request("GET", f"{web}/nodes", retries=False).json()["nodes"] or {}
    states = [node["state"] for node in nodes.get("node", ())]
    return None if "RUNNING" in states else f"{web}/nodes: {states or 'no node'}"


def _write(path: Path, values: Mapping[str, str]) -> None:
    configuration = ET.Element("configuration")
    for name, value in values.items():
        entry = ET.SubElement(configuration, "property")
        ET.SubElement(entry, "name").text = name
        ET.SubElement(entry, "value").text = value
    path.write_bytes(ET.tostring(configuration))
