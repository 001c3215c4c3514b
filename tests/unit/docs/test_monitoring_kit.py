"""Rules and dashboards: promtool takes them, their tests pass, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mailslice.model.settings import clone_root
from stack.promtool import promtool

DOCS = clone_root() / "docs"
RULES = DOCS / "prometheus" / "alerts.yaml"
BOARDS = sorted((DOCS / "grafana").glob("*.json"))
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def run(*words: object, folder: Path) -> tuple[int, str]:
    command = [str(promtool()), *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def anchors(page: Path) -> set[str]:
    """Of its headings, as the site and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def test_promtool_takes_the_rules() -> None:
    code, text = run("check", "rules", RULES.name, folder=RULES.parent)
    assert (code, f"SUCCESS: {len(ALERTS)} rules found" in text) == (0, True), text


def test_each_alert_fires_where_it_should_and_nowhere_else() -> None:
    code, text = run("test", "rules", "alerts.test.yaml", folder=RULES.parent)
    assert code == 0, text
    tests = yaml.safe_load((RULES.parent / "alerts.test.yaml").read_text())["tests"]
    fired = {
        one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in ALERTS}


def test_a_broken_limit_fails_the_unit_tests(tmp_path: Path) -> None:
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("> 10\n", "> 12\n"))
    test = RULES.parent / "alerts.test.yaml"
    (tmp_path / test.name).write_text(test.read_text())
    assert run("test", "rules", test.name, folder=tmp_path)[0] == 1


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    assert anchor in anchors(DOCS / "runbook.md")


def test_every_expression_of_a_dashboard_is_promql(tmp_path: Path) -> None:
    assert [board.stem for board in BOARDS] == ["maintenance", "postal", "queues", "workers"]
    rules = []
    for board in BOARDS:
        for panel in json.loads(board.read_text())["panels"]:
            assert panel["description"], (board.name, panel["title"])
            assert panel["targets"], (board.name, panel["title"])
            rules += [target["expr"].replace("$queue", ".*") for target in panel["targets"]]
    group = {
        "name": "boards",
        "rules": [{"record": f"r{at}", "expr": expr} for at, expr in enumerate(rules)],
    }
    (tmp_path / "boards.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    code, text = run("check", "rules", "boards.yaml", folder=tmp_path)
    assert (code, f"SUCCESS: {len(rules)} rules found" in text) == (0, True), text


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_all_queues_are_also_what_is_about_no_queue(board: Path) -> None:
    """Without allValue Grafana makes All of the values that are not empty."""
    for variable in json.loads(board.read_text())["templating"]["list"]:
        if variable.get("includeAll"):
            assert variable.get("allValue") == ".*", variable["name"]


def test_an_expression_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "groups: [{name: x, rules: [{record: r, expr: 'sum by (queue (x)'}]}]"
    )
    assert run("check", "rules", "x.yaml", folder=tmp_path)[0] != 0


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_the_panels_of_a_dashboard_do_not_overlap(board: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(board.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
