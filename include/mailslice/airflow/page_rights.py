"""The cockpit's rights in terms of Airflow's auth managers.

| right | Airflow's rule | roles of the simple auth manager |
|---|---|---|
| look | read the DAG queue_cleanup | viewer |
| preview | trigger the DAG queue_cleanup | user |
| act | that, trigger the DAG mail_actions, and change pools | op |
| content | act, and the role is named admin | admin |
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import HTTPException, Request

from mailslice.cockpit.rights import Guards, Right

ADMIN = "admin"
Key = TypeVar("Key", bound=Hashable)


def guards_of(dag: str, actions: str) -> Guards:
    """A FastAPI dependency for each right. `dag`, `actions`: ids of queue_cleanup, mail_actions."""
    may_trigger, may_trigger_actions = guard_of_runs(dag), guard_of_runs(actions)

    def may_act(request: Request, user: GetUserDep) -> None:
        """A user who may change pools counts as operator. Raises HTTPException 403."""
        request.state.who = user.get_name()
        may_trigger(request, user)
        may_trigger_actions(request, user)
        if not get_auth_manager().is_authorized_pool(method="PUT", user=user):
            raise HTTPException(403, "this needs the role op")

    def may_see_content(request: Request, user: GetUserDep) -> None:
        """Airflow has no rule for admins alone, so the role's name decides. Raises as `may_act`."""
        may_act(request, user)
        if ADMIN not in {role.lower() for role in roles(user)}:
            raise HTTPException(403, "the content of mails is for the role admin")

    return {
        Right.LOOK: requires_access_dag("GET", param_dag_id=dag),
        Right.PREVIEW: may_trigger,
        Right.ACT: may_act,
        Right.CONTENT: may_see_content,
    }


def guard_of_runs(dag: str) -> Callable[..., Any]:
    """A dependency that passes users who may trigger the DAG of that id."""
    return requires_access_dag("POST", DagAccessEntity.RUN, param_dag_id=dag)


def rights_of(guards: Mapping[Key, Callable[..., Any]]) -> Callable[..., frozenset[Key]]:
    """A dependency that gives the keys (such as rights) whose guards the user passes."""

    def passes(guard: Callable[..., Any], request: Request, user: Any) -> bool:
        try:
            guard(request, user)
        except HTTPException:
            return False
        return True

    def ask(request: Request, user: GetUserDep) -> frozenset[Key]:
        return frozenset(key for key, guard in guards.items() if passes(guard, request, user))

    return ask


def roles(user: Any) -> list[str]:
    """Names of a user's roles: `role` of the simple auth manager, `roles` of FAB."""
    single, several = getattr(user, "role", None), getattr(user, "roles", None)
    named: list[Any] = [*([single] if single else []), *(several or [])]
    return [str(getattr(role, "name", role)) for role in named]
