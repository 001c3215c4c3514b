"""A person looks around: every view and health word, mails of strangers, keys, sizes, colours."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import NARROW, USUAL, WIDE
from tests.browser.world import ANSWER, IMAGE, WAITING, WORDS

pytestmark = pytest.mark.soak

PAGES = {
    "overview": "",
    "mails": "queue?name=idle",
    "domains": "queue?name=idle&tab=domains",
    "slices": "queue?name=idle&tab=slices",
    "set aside": "queue?name=stuck&tab=stuck",
    "workers": "queue?name=stuck&tab=workers",
    "history": "queue?name=idle&tab=history",
    "maintenance": "maintenance",
    "report": "?dag=queue_cleanup&run=none",
    "nothing": "queue?name=none",
}
VIEWS = {
    "lost": ("queue_audit", "History"),
    "stuck": ("stuck_mails", "Workers"),
    "idle": ("worker run", "Workers"),
    "late": ("queue shape", "Domains"),
    "large": ("queue_size", "History"),
}
"""Of each queue that is not well: the command that is advised, and the view that its link opens."""
RENEW_THRICE = """async () => {
  document.getElementById("live").checked = false;
  const { renew } = await import(document.querySelector("script[src$='cockpit.js']").src);
  const Plot = window.uPlot, charts = { made: 0, destroyed: 0 };
  window.uPlot = Object.assign(function (...given) {
    const plot = new Plot(...given);
    charts.made += 1;
    plot.hooks.destroy = [() => { charts.destroyed += 1; }];
    return plot;
  }, Plot);
  for (let time = 0; time < 3; time += 1) await renew();
  return charts;
}"""
"""A chart that a new one takes the place of is destroyed."""


def test_the_worst_queue_is_the_first(site_of_words, visit):
    visitor = visit(site_of_words)
    visitor.go()
    assert visitor.words() == list(WORDS.values())
    assert visitor.complaints == []


@pytest.mark.parametrize("queue", VIEWS)
def test_each_word_says_why_and_leads_to_its_view(site_of_words, visit, queue):
    visitor = visit(site_of_words)
    page, (command, view) = visitor.go(), VIEWS[queue]
    link = visitor.row(queue).locator("td[data-label=Why] a")
    expect(link).to_contain_text(command)
    link.click()
    expect(page.locator("h1")).to_have_text(queue)
    expect(page.locator(".tabs [aria-current]")).to_have_text(view)
    expect(page.locator(".bar .pill")).to_have_text(WORDS[queue])


def test_mails_are_filtered_and_the_address_says_so(site_of_words, visit):
    visitor = visit(site_of_words)
    page = visitor.go("queue?name=idle")
    page.get_by_label("Domain", exact=True).fill("mills.*")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#tab")).to_contain_text("43 mails, the oldest first")
    assert len(visitor.names()) == 43
    assert "domain=mills" in page.url
    page.reload()
    assert len(visitor.names()) == 43
    page.get_by_label("Older than").fill("soon")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#tab .problem")).to_contain_text("soon")
    assert visitor.complaints == []


def test_a_long_queue_is_paged(site_of_words, visit):
    visitor = visit(site_of_words)
    page = visitor.go("queue?name=idle")
    first = visitor.names()
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("#tab")).to_contain_text("Further mails")
    second = visitor.names()
    assert (len(first), len(second), len({*first, *second})) == (100, 30, 130)
    page.get_by_role("link", name="First page").click()
    expect(page.locator("#tab")).to_contain_text("The first 100 mails")


def test_the_oldest_mail_says_why_it_waits(site_of_words, visit):
    visitor = visit(site_of_words)
    page = visitor.go()
    visitor.row("late").locator("a.name").click()
    page.locator("#tab a.name").first.click()
    expect(page.locator("h1")).to_have_text("grey")
    why = page.get_by_role("region", name="Why it waits")
    expect(why).to_contain_text("It is delayed, and due in")
    expect(why).to_contain_text("It was tried once without success.")
    expect(why).to_contain_text(f"The last answer: {ANSWER}")
    visitor.go("queue?name=stuck")
    page.locator("#tab a.name").first.click()
    expect(why).to_contain_text("The worker host-7:4711:a holds it for")
    expect(why).to_contain_text("That worker has no heartbeat for")
    visitor.go("queue?name=idle")
    page.get_by_role("link", name="tide").click()
    expect(why).to_have_text(re.compile("Nobody consumes the queue."))
    assert visitor.complaints == []


def test_what_strangers_wrote_is_shown_and_never_run(site_of_words, visit):
    visitor = visit(site_of_words)
    page = visitor.go("queue?name=idle")
    assert visitor.names()[0] == IMAGE
    page.locator("#tab a.name").first.click()
    expect(page.locator("h1")).to_have_text(IMAGE)
    expect(page.locator("main")).to_contain_text('"<script>alert(2)</script>"@example.org')
    expect(page.locator("main")).to_contain_text(r"\u202egnp.exe\x1b[31m")
    page.wait_for_timeout(300)
    assert page.locator("main img, main script").count() == 0
    assert visitor.complaints == []


def test_maintenance_leads_to_a_run_and_its_data_docs(measured, visit):
    visitor = visit(measured)
    page = visitor.go("maintenance")
    expect(page.get_by_role("row", name=re.compile("^queue_cleanup"))).to_contain_text("dry run")
    expect(page.get_by_role("row", name=re.compile("^queue_size"))).to_contain_text("*/15 * * * *")
    page.get_by_role("link", name="Data Docs").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("^PASS ?queue_cleanup: check of queue idle"))
    expect(page.locator("body")).to_contain_text("The plan may be applied.")
    assert visitor.pale() == []
    page.get_by_role("link", name="All checks").click()
    expect(page.locator("h1")).to_have_text("Checks of all runs")
    page.get_by_role("link", name="Maintenance").click()
    expect(page.locator("h1")).to_have_text("Maintenance")
    assert visitor.complaints == []


def test_measurements_are_shaded_and_drawn(measured, visit):
    visitor = visit(measured)
    page = visitor.go("queue?name=idle&tab=domains")
    # An overview of the last minute is shown as it is; the page looks again by itself.
    expect(page.locator("table.shape")).to_contain_text("mills.example", timeout=30_000)
    page.get_by_role("link", name="mills.example").click()
    expect(page.locator("#tab")).to_contain_text("43 mails")
    visitor.go("queue?name=idle&tab=slices")
    expect(page.locator(".uplot canvas")).to_be_visible()
    for word in ("cleaned", "dead", "live", "survivors"):
        expect(page.locator(".u-legend")).to_contain_text(word)
    assert page.evaluate(RENEW_THRICE) == {"made": 3, "destroyed": 2}
    assert visitor.complaints == []


def test_files_come_out_of_the_frame_of_airflow_that_lets_none_out(site_of_words, visit):
    """The sandbox of Airflow 3.1 and 3.2 lacks allow-downloads."""
    visitor = visit(site_of_words, "admin")
    sandbox, source = "allow-scripts allow-same-origin allow-forms", "queue?name=idle"
    frame = f'<iframe sandbox="{sandbox}" src="mailslice/{source}" width=1200 height=800>'
    outer = visitor.base.removesuffix("mailslice") + "outer"
    visitor.page.route(outer, lambda one: one.fulfill(body=frame, content_type="text/html"))
    visitor.page.goto(outer)
    with visitor.page.expect_download() as download:
        visitor.page.frame_locator("iframe").get_by_role("link", name="as CSV").click()
    assert download.value.suggested_filename == f"idle-{WAITING}-mails.csv"


def test_a_click_on_a_slice_shows_its_mails(measured, visit):
    visitor = visit(measured)
    page = visitor.go("queue?name=idle&tab=slices")
    first = page.locator("#tab tbody tr").last  # the oldest: the newest is the first
    expect(first).to_be_visible(timeout=30_000)
    assert first.locator("td").nth(1).inner_text() == "1"
    first.get_by_role("link").click()
    expect(page.locator("#tab")).to_contain_text("1 mail, the oldest first")
    assert visitor.names() == [IMAGE]
    visitor.go("queue?name=idle&tab=slices")
    over = page.locator(".uplot .u-over")
    expect(over).to_be_visible()
    box = over.bounding_box()
    over.hover(position={"x": 4, "y": box["height"] - 4})
    figures = page.locator(".u-legend .u-series .u-value")
    expect(figures.nth(0)).to_contain_text(" ")
    assert figures.all_inner_texts()[2:] == ["0", "1", "1"], "dead, live, survivors"
    over.click(position={"x": 4, "y": box["height"] - 4})
    expect(page.locator("#tab")).to_contain_text("1 mail, the oldest first")
    assert visitor.names() == [IMAGE]
    assert visitor.complaints == []


def test_only_an_admin_gets_a_mails_content(site_of_words, visit):
    for role, allowed in (("op", False), ("admin", True)):
        visitor = visit(site_of_words, role)
        page = visitor.go("queue?name=stuck")
        address = page.locator("#tab a.name").first.get_attribute("href")
        answer = page.request.get(f"{visitor.base}/{address.replace('mail?', 'content?')}")
        assert (answer.status == 200) is allowed
        assert (b"The body of a mail." in answer.body()) is allowed


def test_a_page_that_is_not_there_says_so_and_leads_back(site_of_words, visit):
    visitor = visit(site_of_words)
    answer = visitor.page.goto(f"{visitor.base}/queue?name=none")
    assert answer.status == 404
    expect(visitor.page.get_by_role("alert").last).to_contain_text("no mail queue 'none'")
    visitor.page.get_by_role("link", name="All queues").click()
    expect(visitor.row("idle")).to_be_visible()


def test_the_keyboard_is_enough(site_of_words, visit):
    visitor = visit(site_of_words)
    page = visitor.go()
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.textContent || document.activeElement.id")
        )
    assert reached[:6] == [
        "Skip to the content",
        "Mail queues",
        "Overview",
        "Maintenance",
        "live",
        "search",
    ]
    page.get_by_label("Search queues").fill("id")
    expect(visitor.row("late")).to_be_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("idle")
    page.get_by_label("Name").focus()
    page.keyboard.type("m00?")
    page.keyboard.press("Enter")
    expect(page.locator("#tab")).to_contain_text("10 mails")


def test_it_is_refreshed_while_somebody_looks(site_of_words, visit):
    visitor = visit(site_of_words)
    page = visitor.go()
    page.evaluate("document.querySelector('main').firstElementChild.remove()")
    expect(page.locator("main h1")).to_have_text("Mail queues", timeout=20_000)
    assert visitor.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, USUAL, WIDE])
def test_every_page_fits_is_named_and_can_be_read(measured, visit, width, scheme):
    visitor = visit(measured, "op", width=width, color_scheme=scheme)
    for name, address in PAGES.items():
        visitor.page.goto(f"{visitor.base}/{address}")
        assert (visitor.overflow(), visitor.unnamed(), visitor.pale()) == (0, [], []), name
