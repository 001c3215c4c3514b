"""What a button of the page does, by a real Airflow with its scheduler, on real stores: a preview,
the run that acts on it, its result, and its undo.
"""

from __future__ import annotations

import json
import re
import urllib.request
from datetime import timedelta
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.model.clock import system_clock
from mailslice.stores import open_stores
from tests.acceptance.airflow_process import airflow_standalone
from tests.browser.world import enqueue, mail

DAG = "mail_actions"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def airflow(stores, fresh_module, tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow") / "home"
    with airflow_standalone(home, fresh_module.env, dags=(DAG,)) as running:
        yield running


class Page:
    """The cockpit in Airflow, asked as a browser does, by the user admin."""

    def __init__(self, airflow):
        self._url = f"{airflow.url}/mailslice"
        self._headers = {"Authorization": f"Bearer {airflow.token}", "Origin": airflow.url}

    def ask(self, path, body=None):
        """The answer as text: of a POST where there is a body."""
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/{path}", data, headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=60
        ) as answer:
            return answer.read().decode()

    @staticmethod
    def conf(text):
        """What the button of a form sends."""
        return json.loads(unescape(re.search(r"data-act='([^']+)'", text)[1]))

    def act(self, airflow, conf):
        """The page of the result, when the run is over; every task was green."""
        started = json.loads(self.ask("act", conf))
        assert started["dag"] == DAG
        states = airflow.wait(DAG, started["run"])
        assert states == {("select", ""): "success", ("act", ""): "success"}
        return self.ask(f"result?{urlencode({'queue': conf['queue'], 'run': started['run']})}")


def test_a_button_of_the_page_is_a_run_that_the_scheduler_does(airflow, stores, fresh_module):
    queue = queues.create(stores, "spool")
    enqueue(
        fresh_module.settings, queue, [(timedelta(0), mail(name)) for name in ("spam-1", "good")]
    )
    page = Page(airflow)
    text = page.ask(f"queue?{urlencode({'name': queue, 'mail': 'spam-*'})}")
    assert 'data-action="delete"' in text
    asked = {"queue": queue, "action": "delete", "name": "spam-*"}
    conf = {**page.conf(page.ask("preview", asked)), "reason": "flood"}
    enqueue(fresh_module.settings, queue, [(timedelta(0), mail("spam-2"))])

    text = page.act(airflow, conf)

    assert "1 deleted" in text
    assert names(stores, queue) == ["good", "spam-2"]
    text = page.act(airflow, page.conf(text))
    assert "1 brought back" in text
    assert names(stores, queue) == ["good", "spam-1", "spam-2"]
    [decision] = [
        one
        for one in decisions(fresh_module)
        if (one["queue"], one["action"]) == (queue, "queue delete")
    ]
    assert (decision["who"], decision["reason"], decision["deleted"]) == ("admin", "flood", 1)


def names(stores, queue):
    return sorted(row.item.mail.name for row in MailQueue(stores, queue, system_clock).browse())


def decisions(fresh_module):
    files = Path(fresh_module.env["MAILSLICE_ARTIFACTS"], "decisions").rglob("*.json")
    return [json.loads(file.read_text()) for file in files]
