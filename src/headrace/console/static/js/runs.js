// The first page: all runs, newest first, with filters. Verdict, data wait and cost come from each run's report, asked
// for only when its row is seen.
import { get, path, run as runPath } from "./api.js";
import { by, el, fill, throttle } from "./dom.js";
import { Origin, cell } from "./figure.js";
import { ago, duration, moment } from "./format.js";
import { follow } from "./live.js";
import { source } from "./source.js";
import { groupBlock, statusBadge, verdictBadge } from "./status.js";

const STATES = { all: "All", going: "Running", Completed: "Completed", Failed: "Failed", Stopped: "Stopped" };
const rows = new Map(); // by run id: {line, key: the state that its report is of, row, cells: those of its report, asked: for it}
const chosen = new Set();
const asked = [];
let asking = 0;

const going = (line) => line.exit_code === null;

function matches(line) {
  const wanted = by("filter").elements.state.value;
  const state = wanted === "all" || (wanted === "going" ? going(line) : line.status === wanted);
  const text = [line.run_id, line.engine, line.status, ...line.groups.flatMap((group) => [group.name, group.instance_type])].join(" ").toLowerCase();
  return state && by("words").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function filter() {
  let shown = 0;
  for (const { line, row } of rows.values()) {
    row.hidden = !matches(line);
    shown += row.hidden ? 0 : 1;
  }
  by("count").textContent = shown === rows.size ? `${rows.size} runs` : `${shown} of ${rows.size} runs`;
  by("runs").hidden = !rows.size;
  by("empty").hidden = shown > 0;
  by("empty").textContent = rows.size ? "No run matches." : "No run yet: start one with `headrace run job.yaml`.";
  history.replaceState(null, "", path("/", { words: by("words").value, state: by("filter").elements.state.value.replace("all", "") }));
}

function choose(id, on) {
  if (on) chosen.add(id);
  else chosen.delete(id);
  const link = by("compare");
  const ready = chosen.size > 1;
  link.textContent = chosen.size ? `Compare ${chosen.size} runs` : "Compare";
  link.classList.toggle("go", ready);
  link.setAttribute("aria-disabled", String(!ready));
  if (ready) link.href = path("/compare", { run: [...chosen] });
  else link.removeAttribute("href");
}

function draw(entry) {
  const { line, row } = entry;
  const box = el("input", { type: "checkbox", "aria-label": `Choose ${line.run_id} for a comparison` });
  box.checked = chosen.has(line.run_id);
  box.addEventListener("change", () => choose(line.run_id, box.checked));
  const focused = row.contains(document.activeElement) ? document.activeElement.tagName : "";
  fill(row,
    el("td", {}, box),
    el("td", { class: "job" }, el("a", { href: `/runs/${encodeURIComponent(line.run_id)}` }, line.job_name),
      el("small", { class: "mono" }, line.run_id)),
    el("td", {}, statusBadge(line), line.attempt > 1 ? ` attempt ${line.attempt}` : null,
      line.cause && line.status === "Failed" ? el("span", { class: "why", title: line.cause }, line.cause) : null),
    el("td", {}, line.groups.map(groupBlock)),
    el("td", { "data-label": "started", class: "number", title: `${moment(line.created)} UTC` }, ago(line.created, Date.now() / 1000)),
    el("td", { "data-label": "ran for", class: "number right" }, duration(line.seconds)),
    ...(entry.cells ?? ["verdict", "data wait", "cost so far"].map((label) => el("td", { class: label === "verdict" ? "" : "right", "data-label": label }, el("span", { class: "muted" }, "…")))));
  if (focused === "INPUT") box.focus();
  if (focused === "A") row.querySelector("a").focus();
}

function reported(entry, report) {
  const origin = new Origin(`headrace report ${entry.line.run_id} --output json`, report.formulas);
  const wait = report.training?.data_wait;
  const cost = report.cost?.total;
  const or = (made) => made ?? el("span", { class: "muted", title: "not measured" }, "–");
  const blank = (known) => (known ? "" : " blank");
  entry.cells = [
    el("td", { "data-label": "verdict", class: blank(report.verdict) }, or(report.verdict && verdictBadge(report.verdict))),
    el("td", { "data-label": "data wait", class: `right${blank(wait)}` }, or(wait && cell(wait, "training.data_wait", origin))),
    el("td", { "data-label": "cost so far", class: `right${blank(cost)}` }, or(cost && cell(cost, "cost.total", origin))),
  ];
  draw(entry);
}

function unreported(entry, error) {
  const none = () => el("td", { class: "blank right", title: error.message }, "–");
  entry.cells = [none(), none(), none()];
  draw(entry);
}

function pump() {
  while (asking < 3 && asked.length) {
    const entry = asked.shift();
    asking += 1;
    get(runPath(entry.line.run_id, "report"))
      .then((report) => reported(entry, report), (error) => unreported(entry, error))
      .finally(() => {
        asking -= 1;
        pump();
      });
  }
}

const seen = new IntersectionObserver((changes) => {
  for (const change of changes) {
    const entry = change.isIntersecting ? rows.get(change.target.dataset.run) : null;
    if (entry && !entry.asked) {
      entry.asked = true;
      asked.push(entry);
    }
  }
  pump();
});

function take(lines) {
  const body = by("runs").tBodies[0];
  const ids = new Set(lines.map((line) => line.run_id));
  for (const [id, entry] of rows) {
    if (!ids.has(id)) {
      entry.row.remove();
      rows.delete(id);
    }
  }
  for (const line of lines) {
    const known = rows.get(line.run_id);
    const key = `${line.secondary_status} ${line.degraded} ${line.hosts}`;
    if (known) {
      known.line = line;
      if (going(line) || known.key !== key) draw(known);
      if (known.key !== key) {
        known.key = key;
        known.asked = true;
        asked.push(known);
      }
      continue;
    }
    const entry = { line, key, row: el("tr", { "data-run": line.run_id }), cells: null, asked: false };
    rows.set(line.run_id, entry);
    draw(entry);
    body.prepend(entry.row); // the list is oldest first
    seen.observe(entry.row);
  }
  pump();
  filter();
}

function broken(found) {
  if (!found.length) return fill(by("broken"));
  const words = found.length === 1 ? "One directory among the runs cannot be read" : `${found.length} directories among the runs cannot be read`;
  const items = found.map((damage) => {
    const id = damage.path.split("/").at(-2);
    return el("li", {}, el("a", { href: `/runs/${encodeURIComponent(id)}` }, id), `: ${damage.reason}`);
  });
  return fill(by("broken"), el("div", { class: "notice mild" }, words, el("ul", {}, items)));
}

async function load() {
  try {
    take(await get("/api/runs"));
    broken(await get("/api/unreadable"));
  } catch (error) {
    fill(by("broken"), el("div", { class: "notice" }, error.message, error.hint ? ` – ${error.hint}` : ""));
  }
}

const start = new URLSearchParams(location.search);
source(document.querySelector("[data-source]"), "headrace ps --all --output json", "/api/runs");
by("states").append(...Object.entries(STATES).map(([value, words]) =>
  el("label", {}, el("input", { type: "radio", name: "state", value, checked: value === (start.get("state") || "all") }), el("span", {}, words))));
by("words").value = start.get("words") ?? "";
by("filter").addEventListener("input", filter);
by("filter").addEventListener("submit", (event) => event.preventDefault());
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select")) {
    event.preventDefault();
    by("words").focus();
  }
});
const again = throttle(load, 1000);
await load();
follow("/api/live", again);
setInterval(() => [...rows.values()].some(({ line }) => going(line)) && !document.hidden && again(), 5000);
