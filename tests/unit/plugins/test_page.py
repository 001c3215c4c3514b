"""The cockpit as Airflow's plugin: each right is a rule of Airflow's auth manager."""

import asyncio

import pytest
from fastapi import HTTPException
from starlette.requests import Request

from mailslice.cockpit.app import ROUTES
from mailslice.cockpit.rights import Right


class User:
    def __init__(self, role):
        self.role = role

    def get_name(self):
        return f"the {self.role}"


ROLES = {
    "viewer": {Right.LOOK},
    "user": {Right.LOOK, Right.PREVIEW},
    "op": {Right.LOOK, Right.PREVIEW, Right.ACT},
    "admin": set(Right),
}


def allowed(plugin, right, user):
    """Whether the guard lets a user of Airflow's simple auth manager pass."""
    guard = plugin.guards[right]
    request = Request({"type": "http", "path_params": {}, "query_string": b"", "headers": []})
    names = guard.__code__.co_varnames[: guard.__code__.co_argcount]
    given = {"request": request, "user": user, "session": None}
    try:
        answer = guard(**{name: given[name] for name in names})
        if asyncio.iscoroutine(answer):
            asyncio.run(answer)
    except HTTPException as error:
        return error.status_code != 403
    return True


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_the_rights_that_the_table_says(plugin, simple_auth_manager, role):
    del simple_auth_manager
    user = User(role)
    assert {right for right in Right if allowed(plugin, right, user)} == ROLES[role]


def test_every_route_of_the_mounted_app_is_in_the_table(plugin):
    assert {route.path for route in plugin.app.routes} == set(ROUTES)


def test_the_view_is_in_the_side_bar_below_whatever_path_airflow_has(plugin):
    nav, tab = plugin.MailslicePlugin.external_views
    assert (nav["name"], nav["href"], nav["destination"]) == ("Mail queues", "mailslice/", "nav")
    assert (tab["href"], tab["destination"]) == ("mailslice/?dag={DAG_ID}&run={RUN_ID}", "dag_run")
