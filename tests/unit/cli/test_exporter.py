"""The exporter: a scrape always answers, and a store that is away has no figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from mailslice.cli.exporter_samples import Exporter
from mailslice.cli.extras import EXTRAS
from mailslice.maintenance.metrics import Sample
from mailslice.model.errors import StoreUnavailable


class World:
    """Two stores; `away` names those that do not answer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.away: set[str] = set()
        self.opened = 0
        self.closed = 0
        self.figures = Exporter(
            self._open,
            30,
            lambda: self.now,
            {"one": self._source("one"), "two": self._source("two")},
        )

    def _open(self) -> Any:
        self.opened += 1
        return SimpleNamespace(close=self._close)

    def _close(self) -> None:
        self.closed += 1

    def _source(self, name: str) -> Any:
        def figures(_stores: object) -> Iterator[Sample]:
            yield Sample(f"mailslice_{name}", "Text", {"queue": "q"}, 5)
            if name in self.away:
                raise StoreUnavailable(f"{name} at 127.0.0.1:1 does not answer")

        return figures

    def samples(self) -> dict[str, float]:
        status, _, body = self.figures.page()
        assert status == 200
        lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_before_the_first_round_nothing_is_up_and_the_page_answers() -> None:
    samples = World().samples()
    assert samples['mailslice_exporter_up{store="one"}'] == 0
    assert not any("age_seconds" in name for name in samples)


def test_figures_have_an_age() -> None:
    world = World()
    world.figures.gather()
    world.now += 12
    samples = world.samples()
    assert samples['mailslice_one{queue="q"}'] == 5
    assert samples['mailslice_exporter_up{store="one"}'] == 1
    assert samples['mailslice_exporter_age_seconds{store="one"}'] == 12
    assert world.figures.readyz()[0] == 200


def test_a_store_that_is_away_has_no_figures_and_the_others_have() -> None:
    world = World()
    world.figures.gather()
    world.away = {"one"}
    world.now += 30
    world.figures.gather()
    samples = world.samples()
    assert 'mailslice_one{queue="q"}' not in samples, "an old figure would be taken for a new one"
    assert samples['mailslice_two{queue="q"}'] == 5
    assert samples['mailslice_exporter_up{store="one"}'] == 0
    assert samples['mailslice_exporter_age_seconds{store="one"}'] == 30
    status, _, body = world.figures.readyz()
    assert (status, list(json.loads(body)["down"])) == (503, ["one"])
    assert (world.opened, world.closed) == (2, 1), "opened anew, for the rest of the round"


def test_it_is_live_while_rounds_go_on() -> None:
    world = World()
    world.figures.gather()
    world.now += 300
    assert world.figures.livez()[0] == 200
    world.now += 300
    assert world.figures.livez()[0] == 503


def test_it_needs_no_module_but_those_of_the_worker_image() -> None:
    others = {one for name, modules in EXTRAS.items() if name != "worker" for one in modules}
    absent = f"sys.modules.update(dict.fromkeys({sorted(others)}))"
    code = f"import sys; {absent}; import {Exporter.__module__}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
