// The page "Mail queues". Every text goes in as text (textContent): queue names, domains and reasons come from outside.
// Addresses are relative: the page lives at <Airflow's own path>/mailslice/, Airflow's API at ../api/v2/.

const AIRFLOW = "../";
const $ = (id) => document.getElementById(id);
let chosen = null;
let shown = [];
let dags = {};

/** An element with a class, and children: nodes or texts. */
function make(tag, kind, ...children) {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

async function get(address, options) {
  const answer = await fetch(address, { credentials: "same-origin", ...options });
  const text = await answer.text();
  let body = null;
  try { body = JSON.parse(text); } catch { /* an error page */ }
  if (!answer.ok) {
    if (answer.status === 401) throw new Error("You are not logged in to Airflow any more: log in and load the page again.");
    if (answer.status === 403) throw new Error("Your Airflow user has no right to do this.");
    throw new Error(typeof body?.detail === "string" ? body.detail : body?.detail?.reason ?? `Airflow answered ${answer.status}.`);
  }
  return body;
}

const number = (value) => (value === null || value === undefined ? "?" : Number(value).toLocaleString("en"));
const time = (text) => (text ? text.replace("T", " ").replace(/(\.\d+)?Z$/, " UTC") : "none");

function span(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return "?";
  const size = Math.max(0, seconds);
  const units = [["d", 86400], ["h", 3600], ["m", 60]];
  const [unit, length] = units.find(([, length]) => size >= length * 2) ?? ["s", 1];
  return `${Math.round(size / length)} ${unit}`;
}

const ago = (text) => (text ? span((Date.now() - Date.parse(text)) / 1000) : "none");

function pill(status) {
  const kind = { done: "good", "nothing to do": "good", "dry run": "", failed: "bad", refused: "bad", running: "warn" }[status] ?? "";
  return make("span", `pill ${kind}`, status ?? "never run");
}

/** A link to a page of Airflow. Inside Airflow's frame the link must be followed by Airflow's own document: the frame may not leave. */
function airflowLink(path, text) {
  const link = make("a", "", text);
  link.href = AIRFLOW + path;
  link.addEventListener("click", (event) => {
    if (window.parent === window) return;
    event.preventDefault();
    const outer = window.parent.document.createElement("a");
    outer.href = link.href;
    window.parent.document.body.append(outer);
    outer.click();
    outer.remove();
  });
  return link;
}

const dagOf = (duty) => dags[duty] ?? duty;
const runLink = (report, text) => (report.dagRun ? airflowLink(`dags/${encodeURIComponent(dagOf(report.duty))}/runs/${encodeURIComponent(report.dagRun)}`, text) : make("span", "faint", "without Airflow"));

function docsLink(path) {
  if (!path) return make("span", "faint", "none");
  const link = make("a", "", "Data Docs");
  link.href = "docs/" + path.split("/").map(encodeURIComponent).join("/");
  return link;
}

function table(head, rows, kind = "") {
  const body = make("tbody", "", ...rows);
  const found = make("table", kind, make("thead", "", make("tr", "", ...head.map(([text, cell]) => { const th = make("th", cell ?? "", text); th.scope = "col"; return th; }))), body);
  return make("div", "wide", found);
}

const row = (...cells) => make("tr", "", ...cells.map(([text, kind]) => make("td", kind ?? "", text)));

function overview(queues) {
  const head = [["Queue"], ["Live mails", "number"], ["Dead rows", "number"], ["Oldest mail", "number"], ["In RabbitMQ", "number"], ["browseStart behind", "number"], ["Last cleanup"]];
  const rows = queues.map((each) => {
    const last = each.cleanups[0];
    const name = make("button", "linklike name", each.queue);
    name.type = "button";
    const size = make("span", "", each.measured ? number(each.measured.size) : "…");
    size.dataset.size = each.queue;
    const broker = each.ready === null ? "?" : `${number(each.ready)} + ${number(each.unacknowledged)}`;
    const known = each.measured ?? (last?.after ? { dead: last.after.dead } : null);
    const line = row([name], [size, "number"], [known ? number(known.dead) : "?", "number"], [each.measured?.oldest ? ago(each.measured.oldest) : each.measured ? "none" : "?", "number"], [broker, "number"], [ago(each.browseStart), "number"], [last ? make("span", "", pill(last.status), " ", make("span", "faint", last.finished ? `${ago(last.finished)} ago` : "")) : pill(null)]);
    line.classList.add("choice");
    if (each.queue === chosen) line.classList.add("chosen");
    line.addEventListener("click", () => { chosen = each.queue; draw(); });
    return line;
  });
  return table(head, rows);
}

function tile(value, text) {
  return make("div", "tile", make("b", "", value), make("span", "", text));
}

function panel(each) {
  const measured = each.measured;
  const last = each.cleanups.find((one) => one.after);
  const run = make("button", "", "Run cleanup…");
  run.type = "button";
  run.addEventListener("click", () => ask(each.queue));
  const measure = make("button", "quiet", "Measure now");
  measure.type = "button";
  measure.addEventListener("click", () => begin("queue_size", { queues: [each.queue] }, measure));
  const size = make("b", "", measured ? number(measured.size) : "…");
  size.dataset.size = each.queue;
  const parts = [
    make("div", "bar", make("h2", "name", each.queue), measure, run),
    make("div", "tiles",
      make("div", "tile", size, make("span", "", "live mails now")),
      measured ? tile(number(measured.dead), `dead rows, ${ago(measured.measuredAt)} ago`) : tile(number(last?.after?.dead), last?.after ? "dead rows after the last cleanup" : "dead rows: not measured yet"),
      tile(measured?.oldest ? ago(measured.oldest) : measured ? "none" : "?", "age of the oldest mail"),
      tile(each.ready === null ? "?" : number(each.ready + each.unacknowledged), "messages in RabbitMQ"),
      tile(number(each.deadLetters), "dead letters"),
      tile(ago(each.browseStart), "browseStart behind now")),
  ];
  if (measured?.advice?.length) parts.push(make("ul", "advice", ...measured.advice.map((text) => make("li", "", text))));
  if (measured?.plot) {
    const picture = make("img", "picture");
    picture.src = `plot?queue=${encodeURIComponent(each.queue)}&run=${encodeURIComponent(measured.run)}`;
    picture.alt = `Live and dead rows of ${each.queue} by slice`;
    parts.push(make("section", "", make("h3", "", "Slices"), picture));
  }
  parts.push(make("div", "two", lastCleanup(each), measured ? shape(measured) : null));
  parts.push(history(each));
  return make("div", "panel", ...parts);
}

function lastCleanup(each) {
  const last = each.cleanups.find((one) => one.before && one.after) ?? each.cleanups[0];
  if (!last) return make("section", "", make("h3", "", "Last cleanup"), make("p", "faint", "This queue was never cleaned. Start with a dry run: it shows what a cleanup would do."));
  return make("section", "", make("h3", "", "Last cleanup"), reportBody(last));
}

function reportBody(report) {
  const lines = [];
  if (report.before && report.after) {
    for (const [name, text] of [["live", "live mails"], ["dead", "dead rows"], ["browseStart", "browseStart"], ["contentStart", "contentStart"]]) {
      const [from, to] = [report.before[name], report.after[name]];
      const show = name.endsWith("Start") ? time : number;
      lines.push(row([text], [show(from), "number"], [make("span", from === to ? "" : "moved", show(to)), "number"]));
    }
  }
  const sums = ["planned", "applied", "skipped", "failed"].map((name) => `${number(report[name])} ${name}`).join(", ");
  return make("div", "panel",
    make("p", "", pill(report.status), " ", report.message),
    lines.length ? table([[""], ["before", "number"], ["after", "number"]], lines) : null,
    make("p", "faint", `${sums} · by ${report.who ?? "?"}${report.reason ? ` · ${report.reason}` : ""}${report.lasted ? ` · ${span(report.lasted)}` : ""} · `, runLink(report, "run page"), " · ", docsLink(report.docs)));
}

function shape(measured) {
  const found = measured.shape;
  if (!found?.domains?.length) return make("section", "", make("h3", "", "Recipient domains by age"), make("p", "faint", "No mail is live."));
  const cells = (counts) => counts.map((count) => [count || "·", `number${count ? "" : " zero"}`]);
  const total = row(["all mails"], [number(measured.live), "number"], ...cells(found.total));
  total.className = "total";
  const rows = found.domains.slice(0, 12).map((each) => row([each.domain, "name"], [number(each.total), "number"], ...cells(each.counts)));
  return make("section", "", make("h3", "", "Recipient domains by age, minutes"), table([["Domain"], ["Mails", "number"], ...found.columns.map((text) => [text, "number"])], [total, ...rows], "shape"));
}

function history(each) {
  if (!each.cleanups.length) return null;
  const rows = each.cleanups.map((one) => row([time(one.finished ?? one.started)], [pill(one.status)], [number(one.applied), "number"], [number(one.skipped), "number"], [one.who ?? "?"], [runLink(one, "run")], [docsLink(one.docs)]));
  return make("section", "", make("h3", "", "Cleanups"), table([["When"], [""], ["Rows deleted", "number"], ["Skipped", "number"], ["Who"], ["Airflow"], ["Checks"]], rows));
}

/** How much there is to see of a queue: the busiest one is shown first. */
const busy = (each) => (each.measured ? each.measured.live + each.measured.dead : 0) + each.cleanups.reduce((sum, one) => sum + (one.applied ?? 0), 0) + (each.ready ?? 0);

function draw() {
  const main = $("main");
  if (!shown.length) {
    main.replaceChildren(make("p", "faint", "RabbitMQ has no mail queue yet: `mailslice queue create NAME` creates one."));
    return;
  }
  if (!shown.some((each) => each.queue === chosen)) chosen = [...shown].sort((a, b) => busy(b) - busy(a))[0].queue;
  main.replaceChildren(overview(shown), panel(shown.find((each) => each.queue === chosen)));
  for (const each of shown) countNow(each.queue);
}

const counted = new Map();

/** The exact size, asked for queue by queue: a large one must not hold up the page. */
async function countNow(queue) {
  const asked = counted.get(queue) ?? get(`api/size?queue=${encodeURIComponent(queue)}`).then((found) => found.size);
  counted.set(queue, asked);
  try {
    const size = await asked;
    for (const node of document.querySelectorAll("[data-size]")) if (node.dataset.size === queue) node.textContent = number(size);
  } catch (error) {
    counted.delete(queue);
    problem(error);
  }
}

function problem(error) {
  $("problem").hidden = !error;
  $("problem").textContent = error ? error.message : "";
}

async function load() {
  $("main").setAttribute("aria-busy", "true");
  counted.clear();
  try {
    dags = await get("api/dags");
    const found = await get("api/queues");
    shown = found.queues;
    problem(null);
    $("when").textContent = time(found.at);
    draw();
    switches();
  } catch (error) {
    problem(error);
  } finally {
    $("main").setAttribute("aria-busy", "false");
  }
}

/** Which of our DAGs are paused, and what Airflow warns of, such as a pool that does not exist. A user without the right to see this sees nothing. */
async function switches() {
  const ours = new Set(Object.values(dags));
  const byHand = new Set(["republish_lost", "migrate_v3_to_v4"].map(dagOf));
  let lines = [];
  try {
    const known = await get(`${AIRFLOW}api/v2/dags?tags=${encodeURIComponent("mail queue")}&limit=200`);
    const paused = known.dags.filter((dag) => ours.has(dag.dag_id) && dag.is_paused && !byHand.has(dag.dag_id)).map((dag) => dag.dag_id);
    if (paused.length) lines.push(make("p", "", "Paused, so that nothing of this runs by itself: ", ...paused.flatMap((dag, i) => [i ? ", " : "", airflowLink(`dags/${encodeURIComponent(dag)}`, dag)]), ". Look at a dry run first (mailslice duty run NAME --dry-run), then switch it on: a run of a paused DAG waits until then."));
    const warned = await get(`${AIRFLOW}api/v2/dagWarnings?limit=100`);
    lines = lines.concat([...new Set(warned.dag_warnings.filter((one) => ours.has(one.dag_id)).map((one) => one.message))].map((text) => make("p", "", `Airflow warns: ${text}`)));
  } catch { /* the page works without it */ }
  $("switches")?.remove();
  if (!lines.length) return;
  const box = make("aside", "faint", ...lines);
  box.id = "switches";
  $("main").before(box);
}

/** Start a DAG run by Airflow's own API, as the user who is logged in; then follow it. */
async function begin(duty, conf, button, dialog = null) {
  const dag = dagOf(duty);
  button.disabled = true;
  try {
    const about = await get(`${AIRFLOW}api/v2/dags/${dag}`);
    const started = await get(`${AIRFLOW}api/v2/dags/${dag}/dagRuns`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ logical_date: null, conf }) });
    dialog?.close();
    follow(dag, started.dag_run_id, about.is_paused);
    return null;
  } catch (error) {
    if (!dialog) problem(error);
    return error;
  } finally {
    button.disabled = false;
  }
}

function follow(dag, run, paused) {
  const state = make("span", "pill warn", "queued");
  const line = make("p", "", `${dag}: `, state, " ", airflowLink(`dags/${dag}/runs/${encodeURIComponent(run)}`, "open its page"), paused ? " · the DAG is paused: unpause it there, else the run waits" : "");
  line.id = "following";
  $("following")?.remove();
  $("main").before(line);
  const look = async () => {
    try {
      const found = await get(`${AIRFLOW}api/v2/dags/${dag}/dagRuns/${encodeURIComponent(run)}`);
      state.textContent = found.state;
      if (found.state === "success" || found.state === "failed") {
        state.className = `pill ${found.state === "success" ? "good" : "bad"}`;
        await load();
        return;
      }
    } catch (error) { problem(error); return; }
    setTimeout(look, 2000);
  };
  setTimeout(look, 1000);
}

function ask(queue) {
  $("ask-queue").textContent = queue;
  $("ask-dry").checked = true;
  $("ask-grace").value = "";
  $("ask-reason").value = "";
  $("ask-problem").hidden = true;
  tell();
  $("ask").showModal();
}

function tell() {
  const dry = $("ask-dry").checked;
  $("ask-danger").hidden = dry;
  $("ask-yes").textContent = dry ? "Start dry run" : "Delete dead rows";
  $("ask-yes").classList.toggle("danger", !dry);
}

$("ask-dry").addEventListener("change", tell);
$("ask-no").addEventListener("click", () => $("ask").close());
$("ask").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const conf = { queues: [$("ask-queue").textContent], dry_run: $("ask-dry").checked };
  if ($("ask-grace").value.trim()) conf.grace = $("ask-grace").value.trim();
  if ($("ask-reason").value.trim()) conf.reason = $("ask-reason").value.trim();
  const error = await begin("queue_cleanup", conf, $("ask-yes"), $("ask"));
  $("ask-problem").hidden = !error;
  $("ask-problem").textContent = error?.message ?? "";
});
$("refresh").addEventListener("click", () => (asked.has("run") ? loadRun() : load()));

/** The tab of a run's page: only the reports of that run. */
async function loadRun() {
  $("title").textContent = "Report of this run";
  try {
    dags = await get("api/dags");
    const duty = Object.keys(dags).find((name) => dags[name] === asked.get("dag"));
    if (!duty) {
      $("title").textContent = "Queue report";
      $("refresh").hidden = true;
      $("main").replaceChildren(make("p", "faint", "This DAG is not one of mailslice: it has no queue report."));
      $("main").setAttribute("aria-busy", "false");
      return;
    }
    const found = await get(`api/reports?duty=${encodeURIComponent(duty)}&dag_run=${encodeURIComponent(asked.get("run"))}`);
    const parts = found.map((report) => make("section", "", make("h2", "name", report.queue), report.status === "done" && report.duty === "queue_size" ? make("p", "", pill(report.status), " ", report.message) : reportBody(report)));
    $("main").replaceChildren(make("div", "panel", ...(parts.length ? parts : [make("p", "faint", "No report yet: it is written when a queue's steps are over.")])));
    problem(null);
  } catch (error) { problem(error); }
  $("main").setAttribute("aria-busy", "false");
}

function theme() {
  try {
    const outer = window.parent.document.documentElement;
    const dark = outer.classList.contains("dark") || outer.dataset.theme === "dark";
    const light = outer.classList.contains("light") || outer.dataset.theme === "light";
    if (window.parent !== window && (dark || light)) document.documentElement.dataset.theme = dark ? "dark" : "light";
  } catch { /* not inside Airflow's own page */ }
}

const asked = new URLSearchParams(location.search);
theme();
try { if (window.parent !== window) new MutationObserver(theme).observe(window.parent.document.documentElement, { attributes: true }); } catch { /* as above */ }
if (asked.has("run")) loadRun(); else load();
