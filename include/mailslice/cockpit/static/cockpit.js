// What the pages do in the browser: refresh, follow runs, start them by Airflow's own API as the user, draw.
// Text from outside is only ever set as text. Addresses are relative: the page lives below Airflow's own path.

const AIRFLOW = "../";
const $ = (id) => document.getElementById(id);

function make(tag, kind, ...children) {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  node.append(...children.filter((child) => child !== null));
  return node;
}

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text ?? "";
}

function json(text) {
  try { return JSON.parse(text); } catch { return null; /* a page */ }
}

/* Why a request was refused, in a sentence. */
function refusal(status, body) {
  if (status === 401) return "You are not logged in to Airflow any more: log in and load the page again.";
  if (status === 403 && [undefined, "Forbidden"].includes(body?.detail)) return "Your Airflow user has no right to do this.";
  return typeof body?.detail === "string" ? body.detail : body?.detail?.reason ?? `Airflow answered ${status}.`;
}

async function get(address, options) {
  const answer = await fetch(address, { credentials: "same-origin", ...options });
  const text = await answer.text(), body = json(text);
  if (answer.ok) return body ?? text;
  throw new Error(refusal(answer.status, body));
}

/* Links to Airflow's own pages, and downloads: inside Airflow's frame its own document must follow them. */
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-airflow], a[download]");
  if (!link || window.parent === window) return;
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  outer.toggleAttribute("download", link.hasAttribute("download"));
  window.parent.document.body.append(outer);
  outer.click();
  outer.remove();
});

function airflowLink(path, text) {
  const link = make("a", "", text);
  link.href = AIRFLOW + path;
  link.dataset.airflow = path;
  return link;
}

/* The same address again: figures and lists as they are now. */
async function renew() {
  const page = new DOMParser().parseFromString(await get(location.href), "text/html");
  const main = $("main"), fresh = page.getElementById("main");
  if (!fresh) return;
  const typed = $("search")?.value, typing = document.activeElement?.id === "search";
  for (const old of main.querySelectorAll(".spark svg")) {
    const queue = old.closest("[data-queue]")?.dataset.queue;
    const cell = [...fresh.querySelectorAll("[data-queue]")].find((row) => row.dataset.queue === queue)?.querySelector(".spark");
    if (cell) { cell.replaceChildren(old); cell.removeAttribute("hx-get"); }
  }
  main.replaceWith(fresh);
  /* Somebody fills in an open dialog: keep it. */
  if (!$("dialogs").querySelector("dialog[open]")) $("dialogs").replaceWith(page.getElementById("dialogs"));
  document.title = page.title;
  window.htmx?.process(fresh);
  if (typed) { $("search").value = typed; search(); }
  if (typing) $("search").focus();
  draw();
  problem(null);
}

/* Live refresh, except of a hidden page and of one with an open dialog. */
async function refresh() {
  const every = Number($("main").dataset.refresh) * 1000;
  if (every && $("live").checked && !document.hidden && !document.querySelector("dialog[open]")) {
    try { await renew(); } catch (error) { problem(error.message); }
  }
  setTimeout(refresh, every || 10000);
}

function search() {
  const wanted = $("search").value.toLowerCase();
  for (const row of document.querySelectorAll("tr[data-queue]")) row.hidden = !row.dataset.queue.toLowerCase().includes(wanted);
}
document.addEventListener("input", (event) => { if (event.target.id === "search") search(); });

/* Charts */
function clock(at) {
  const text = new Date(at * 1000).toISOString();
  return text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
}

let plots = [];

function draw() {
  plots = plots.filter((plot) => plot.root.isConnected || plot.destroy());
  for (const box of document.querySelectorAll("[data-chart]:not([data-drawn])")) {
    box.dataset.drawn = "yes";
    const { x, live, dead, survivors, cleaned, window: seconds } = JSON.parse(box.dataset.chart);
    if (!x.length || !window.uPlot) continue;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const half = (seconds ?? 3600) / 2;
    const bars = window.uPlot.paths.bars({ size: [0.8, 40] });
    const whole = window.uPlot.paths.bars({ size: [1, Infinity] });
    const minute = (at) => (at === null ? "" : new Date(at * 1000).toISOString().slice(0, 16).replace("T", " "));
    const plot = new window.uPlot({
      width: box.clientWidth || 600, height: 240, axes: [{ ...axis, values: (_plot, at) => at.map(clock) }, axis], scales: { cleaned: { range: [0, 1] }, x: { range: (_plot, from, to) => [from - half, to + half] } }, tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      series: [
        { label: "slice", value: (_plot, at) => minute(at) },
        { label: "cleaned", scale: "cleaned", stroke: colour("--good"), fill: colour("--good-soft"), paths: whole, points: { show: false }, value: (_plot, _one, _series, index) => (index === null || cleaned[index] === null ? "" : `no row left, ${minute(cleaned[index])}`) },
        { label: "dead", stroke: colour("--faint"), fill: colour("--line"), paths: bars },
        { label: "live", stroke: colour("--accent"), fill: colour("--accent"), paths: bars },
        { label: "survivors", stroke: colour("--warn"), fill: colour("--warn"), paths: bars },
      ],
    }, [x, cleaned.map((at) => (at === null ? null : 1)), dead, live, survivors], box);
    plots.push(plot);
    plot.over.addEventListener("click", () => {
      if (plot.cursor.idx === null) return;
      const start = new Date(x[plot.cursor.idx] * 1000).toISOString().replace(".000Z", "+00:00");
      location.href = `queue?name=${encodeURIComponent(box.dataset.queue)}&slice=${encodeURIComponent(start)}`;
    });
  }
}

/* The exact size, on request: bounded by the server. */
async function count(button) {
  button.disabled = true;
  try {
    const { size } = await get(`count?name=${encodeURIComponent(button.dataset.count)}`);
    if (size === null) problem("More than 100,000 rows would have to be read: run queue_size, or mailslice queue size.");
    else $("size").textContent = size.toLocaleString("en");
  } catch (error) { problem(error.message); }
  button.disabled = false;
}

/* Runs */
async function begin(duty, conf) {
  const dag = (await get("api/dags"))[duty];
  const about = await get(`${AIRFLOW}api/v2/dags/${encodeURIComponent(dag)}`);
  const started = await get(`${AIRFLOW}api/v2/dags/${encodeURIComponent(dag)}/dagRuns`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ logical_date: null, conf }) });
  follow(dag, started.dag_run_id, about.is_paused);
}

function follow(dag, run, paused, ended) {
  const state = make("span", "pill warn", "queued");
  const line = make("p", "", `${dag}: `, state, " ", airflowLink(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`, "open its page"), paused ? " · the DAG is paused: unpause it there, else the run waits" : "");
  $("following").replaceChildren(line);
  const look = async () => {
    try {
      const found = await get(`${AIRFLOW}api/v2/dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`);
      state.textContent = found.state;
      if (found.state === "success" || found.state === "failed") { state.className = `pill ${found.state === "success" ? "good" : "bad"}`; await ended?.(); return; }
    } catch (error) { problem(error.message); }
    setTimeout(look, 2000);
  };
  setTimeout(look, 1000);
}

async function ask(duty, queue) {
  const dialog = make("dialog", "");
  try {
    const text = await get(`form?duty=${encodeURIComponent(duty)}`);
    dialog.append(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  } catch (error) { problem(error.message); return; }
  const queues = dialog.querySelector("[name=queues]");
  if (queues && queue) queues.value = queue;
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

function values(form) {
  const conf = {};
  for (const field of form.querySelectorAll("[name]")) {
    const text = field.value.trim(), number = Number(text);
    if (field.dataset.kind === "boolean") conf[field.name] = field.checked;
    /* One name a line, as in Airflow's own form: names may hold commas and blanks. */
    else if (field.dataset.kind === "array") { if (field.value) conf[field.name] = field.value.split("\n"); }
    /* JSON has no NaN: it would become null, the default. So send the text, which Airflow refuses. */
    else if (text && ["integer", "number"].includes(field.dataset.kind)) conf[field.name] = Number.isFinite(number) ? number : text;
    else if (text) conf[field.name] = text;
  }
  return conf;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.ask) { await ask(button.dataset.ask, button.dataset.queue); return; }
  if ("close" in button.dataset) { button.closest("dialog").close(); return; }
  if (button.dataset.count) { await count(button); return; }
  if (!button.dataset.run) return;
  button.disabled = true;
  try { await begin(button.dataset.run, { queues: [button.dataset.queue] }); } catch (error) { problem(error.message); }
  button.disabled = false;
});
document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-start]");
  if (!form) return;
  event.preventDefault();
  const said = form.querySelector(".problem"), submit = form.querySelector("[type=submit]");
  submit.disabled = true;
  try {
    await begin(form.dataset.start, values(form));
    form.closest("dialog").close();
  } catch (error) {
    said.hidden = false;
    said.textContent = error.message;
  }
  submit.disabled = false;
});
document.addEventListener("htmx:responseError", ({ detail: { xhr } }) => problem(refusal(xhr.status, json(xhr.responseText))));
document.addEventListener("htmx:afterSwap", draw);

/* Light and dark as Airflow has it, else as the system. */
function theme() {
  try {
    const outer = window.parent.document.documentElement;
    const dark = outer.classList.contains("dark") || outer.dataset.theme === "dark";
    const light = outer.classList.contains("light") || outer.dataset.theme === "light";
    if (window.parent !== window && (dark || light)) document.documentElement.dataset.theme = dark ? "dark" : "light";
  } catch { /* not inside Airflow's own page */ }
}
theme();
try { if (window.parent !== window) new MutationObserver(theme).observe(window.parent.document.documentElement, { attributes: true }); } catch { /* as above */ }
addEventListener("load", draw);
setTimeout(refresh, 10000);

export { follow, get, make, problem, renew };
