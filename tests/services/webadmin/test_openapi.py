"""schemathesis against the OpenAPI document on real stores: no route breaks, or answers anything
that the document does not say.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.maintenance.artifacts import artifacts
from mailslice.model.settings import load_settings
from mailslice.webadmin.app import ROUTES, webadmin
from mailslice.webadmin.in_process import InProcessTasks
from mailslice.webadmin.queues import Queues
from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces


@pytest.fixture(scope="module")
def app(fresh_module):
    """The routes with tasks that do nothing: what is tested here are requests."""
    Cli(fresh_module.env).inside()("queue", "create", "spool")
    settings = load_settings(fresh_module.env)
    facts = Facts(lambda: settings)
    tasks = InProcessTasks(lambda _request, _watch: None, artifacts(settings), "here")
    yield webadmin(Queues(facts), tasks, dict.fromkeys(Right, lambda: None))
    tasks.close()
    facts.close()


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def test_every_answer_is_in_the_document(app):
    """Without the pytest plugin of schemathesis, which breaks under this pytest."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    asked = set()
    for result in schema.get_all_operations():
        operation = result.ok()

        @bounds(
            max_examples=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def every_answer(case):
            case.call_and_validate(checks=CHECKS)

        every_answer()
        asked.add((operation.method.upper(), operation.path))
    assert asked == {(method, path) for method, path, *_ in ROUTES}
