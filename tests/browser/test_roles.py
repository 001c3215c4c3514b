"""Each role has the buttons that it may press, and the sentence that says what the others need."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.serving import ROLES

pytestmark = pytest.mark.soak

ORDER = list(ROLES)
BUTTONS = {
    "queue?name=idle": {
        "Delete…": "user",
        "Retry now…": "user",
        "Move…": "user",
        "Delay…": "user",
        "Hold…": "op",
        "Republish lost…": "op",
        "Count now": "viewer",
    },
    "queue?name=idle&tab=history": {"Run cleanup…": "user", "Measure now": "user"},
    "queue?name=idle&tab=slices": {"Measure now": "user", "Hold…": "op"},
    "queue?name=idle&tab=stuck": {"Redrive dead letters…": "user"},
    "maintenance": {"Run…": "user"},
}
"""By page: the name of a button, and the least role that has it."""


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_the_buttons_that_it_may_press(site_of_words, visit, role):
    visitor = visit(site_of_words, role)
    for address, buttons in BUTTONS.items():
        page = visitor.go(address)
        has = {name for name in buttons if page.get_by_role("button", name=name).count()}
        assert has == {
            name for name, least in buttons.items() if ORDER.index(role) >= ORDER.index(least)
        }, address
        assert ("needs the right" in page.locator("main").inner_text()) is (role == "viewer")
    assert (page.locator("main input[type=checkbox]").count() > 0) is False
    page = visitor.go("queue?name=idle")
    assert (page.locator("input[data-mail]").count() > 0) is (role != "viewer")
    page.get_by_role("link", name="tide").click()
    content = page.get_by_role("link", name="Download the content")
    expect(content).to_have_count(1 if role == "admin" else 0)
    assert visitor.complaints == []


def test_a_user_sees_a_preview_and_no_way_to_start_it(site_of_words, visit):
    visitor = visit(site_of_words, "user")
    page = visitor.go("queue?name=idle&domain=mills.example")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete: 43 mails of idle")
    expect(dialog).to_contain_text("Starting it needs the right act (role op).")
    assert dialog.locator("[type=submit], [name=reason]").count() == 0
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    assert visitor.complaints == []
