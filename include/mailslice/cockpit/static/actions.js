// Actions on mails: a preview first, then a run of Airflow as the user, then what came of it.
// Text from outside is only ever set as text, or comes escaped from the server.

import { get, make, problem, follow, renew } from "./cockpit.js";

const JSON_POST = { method: "POST", headers: { "Content-Type": "application/json" } };
const post = (address, body) => get(address, { ...JSON_POST, body: JSON.stringify(body) });

function parsed(text) {
  return [...new DOMParser().parseFromString(text, "text/html").body.childNodes];
}

/* Like `stuck release --all`, a release of all skips mails that their worker completed after all.
   A mail that a person ticked singly is released. */
const BUT_FINISHED = ":not([data-finished][data-by-all])";

function chosen(but = "") {
  return [...document.querySelectorAll(`input[data-mail]:checked${but}`)].map((box) => box.dataset.mail);
}

/* What the buttons are about: the ticked mails, else all that match the filter of the page. */
function label() {
  const text = document.querySelector("[data-chosen]");
  if (!text || !document.querySelector("input[data-mail]")) return;
  const count = chosen().length;
  text.dataset.all ??= text.textContent;
  text.textContent = count ? `The ${count} ticked:` : text.dataset.all;
}

function asked(group, action) {
  const { queue, ...filter } = JSON.parse(group.dataset.about);
  const ids = chosen();
  const mails = ids.length ? { ids } : filter;
  const all = Object.keys(mails).length === 0;
  const field = (name) => group.querySelector(`[data-${name}]`).value;
  const more = action === "move" ? { to: field("to") } : action === "delay" ? { lasts: field("lasts") } : {};
  return { queue, action: all ? { delete: "clear", retry: "flush" }[action] ?? action : action, ...mails, ...more };
}

async function look(button) {
  const dialog = make("dialog", "", make("p", "", "Looking for the mails…"));
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  button.disabled = true;
  try {
    dialog.replaceChildren(...parsed(await post("preview", asked(button.closest("[data-about]"), button.dataset.action))));
    dialog.querySelector("[name=reason]")?.focus();
  } catch (error) { dialog.close(); problem(error.message); }
  button.disabled = false;
}

async function result(queue, run) {
  const found = parsed(await get(`result?queue=${encodeURIComponent(queue)}&run=${encodeURIComponent(run)}`));
  document.getElementById("following").append(...found);
  /* Do not throw: `follow` would ask for the result again, and show it twice. */
  if (document.getElementById("tab")) await renew().catch((error) => problem(error.message));
}

async function act(form) {
  const said = form.querySelector(".problem[hidden], .problem:last-of-type");
  const conf = JSON.parse(form.dataset.act);
  for (const field of form.querySelectorAll("[name]")) {
    if (field.type === "checkbox") conf[field.name] = field.checked;
    else if (field.value.trim()) conf[field.name] = field.value.trim();
  }
  if ("ticked" in form.dataset) conf.ids = chosen(conf.action === "release_stuck" ? BUT_FINISHED : "");
  const submit = form.querySelector("[type=submit]");
  submit.disabled = true;
  try {
    const { dag, run } = await post("act", conf);
    form.closest("dialog")?.close();
    submit.disabled = false;
    follow(dag, run, false, () => result(conf.queue, run));
  } catch (error) {
    submit.disabled = false;
    said.hidden = false;
    said.textContent = error.message;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (button) look(button);
  const opens = event.target.closest("button[data-open]");
  if (opens) document.getElementById(opens.dataset.open).showModal();
});
document.addEventListener("change", (event) => {
  if (event.target.matches("input[data-all-mails]")) {
    for (const box of document.querySelectorAll("input[data-mail]")) {
      if (!box.checked) box.dataset.byAll = "";
      box.checked = event.target.checked;
    }
  } else if (event.target.matches("input[data-mail]")) delete event.target.dataset.byAll;
  if (event.target.matches("input[data-mail], input[data-all-mails]")) label();
});
document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-act]");
  if (!form) return;
  event.preventDefault();
  act(form);
});
document.addEventListener("htmx:afterSwap", label);
