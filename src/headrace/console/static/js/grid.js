// One grid: progress and cost, its lines in the lanes of their regions, the best ones, and every line with a way to its run.
import { get, path } from "./api.js";
import { by, el, fill, throttle } from "./dom.js";
import { amount, duration, number } from "./format.js";
import { STATES, progress, stateBadge, stateWords } from "./grid_parts.js";
import { follow } from "./live.js";
import { source } from "./source.js";

const name = decodeURIComponent(location.pathname.split("/")[2]);
const url = `/api/grids/${encodeURIComponent(name)}`;
const MOST = 500; // rows drawn at once
let report = null;

const runOf = (line) => (line.run_id ? `/runs/${encodeURIComponent(line.run_id)}` : null);
const money = (value) => (value === null ? "–" : amount(value));
const why = (line) => line.reason || (line.cause ? `${[line.cause.group, line.cause.host].filter(Boolean).join("/")} ${line.cause.reason}`.trim() : "");
const place = (line) => (line.in_file ? line.place : `${line.place} (not in the file now)`);
const said = (line) => Object.entries(line.fields).filter(([field]) => field !== "region" && field !== "engine")
  .map(([field, value]) => `${field.replace(/\.path$/, "").split(".").at(-1)}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

function summary() {
  const item = (words, ...value) => el("span", {}, `${words} `, el("b", {}, ...value));
  fill(by("summary"), el("div", { class: "card" },
    progress(report.states, report.lines.length),
    el("div", { class: "legend-states" }, STATES.filter((state) => report.states[state]).map((state) =>
      el("span", {}, el("i", { "data-state": state, "aria-hidden": "true" }), `${report.states[state]} ${state}`))),
    el("div", { class: "money" },
      item(report.ended === null ? "Cost so far" : "Cost", `${amount(report.cost)} ${report.currency}`),
      item("Planned", `${amount(report.planned_cost)} ${report.currency}`),
      report.budget === null ? null : item("Budget", `${amount(report.budget)} ${report.currency}`),
      item(report.ended === null ? "Goes on for" : "Took", duration(report.seconds)))));
}

/** Puts attempts in a region that did not run at once into one lane. */
function lanesOf(attempts) {
  const lanes = [];
  for (const attempt of attempts) {
    const free = lanes.find((lane) => lane.end <= attempt.started);
    const lane = free ?? (lanes.push({ attempts: [] }), lanes.at(-1));
    lane.attempts.push(attempt);
    lane.end = attempt.started + attempt.seconds;
  }
  return lanes;
}

function regions() {
  const span = Math.max(report.seconds, 1);
  const all = report.lines.flatMap((line) => line.spans.map((attempt) => ({ line, ...attempt }))).sort((a, b) => a.started - b.started);
  const bar = ({ line, number, run_id, state, started, seconds }) => {
    const words = `${line.job_name}${line.attempts > 1 ? ` (attempt ${number})` : ""}: ${said(line)}; ${state}, ${duration(seconds)}`;
    const made = el("a", { href: runOf({ run_id }), "data-state": state, title: words, "aria-label": words });
    made.style.left = `${(100 * Math.max(0, started - report.created)) / span}%`;
    made.style.width = `${(100 * seconds) / span}%`;
    return made;
  };
  const words = (region) => `${region.lines} lines, ${region.completed} completed, ${region.failed} failed, ${region.stopped} stopped, ${amount(region.cost + region.copy_cost)} of ${amount(region.planned_cost)} ${report.currency}`;
  const totals = new Map(report.regions.map((region) => [region.region, region]));
  const shown = [...new Set([...totals.keys(), ...all.map((attempt) => attempt.region)])].sort().map((region) => {
    const ran = all.filter((attempt) => attempt.region === region);
    return el("div", { class: "region", "data-region": region },
      el("h3", {}, region || "no region", el("span", { class: "muted" }, totals.has(region) ? words(totals.get(region)) : "")),
      lanesOf(ran).map((lane) => el("div", { class: "track" }, lane.attempts.map(bar))));
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => el("span", {}, duration(part * span)));
  fill(by("regions"), el("h2", { id: "regions-title" }, "Regions"), el("div", { class: "card" }, shown, el("div", { class: "ticks", "aria-hidden": "true" }, ticks)));
}

function best() {
  const place = by("best");
  place.hidden = !report.best.length;
  if (!report.best.length) return;
  const { metric, goal } = report.objective;
  const byIndex = new Map(report.lines.map((line) => [line.index, line]));
  const chosen = [...new Set([...report.best.slice(0, 5), ...report.front])];
  const rank = new Map(report.best.map((index, at) => [index, at + 1]));
  const rows = chosen.sort((a, b) => rank.get(a) - rank.get(b)).map((index) => byIndex.get(index)).map((line) => el("tr", {},
    el("td", { class: "right" }, String(rank.get(line.index))),
    el("td", {}, el("a", { href: runOf(line) }, said(line) || line.job_name), el("small", { class: "mono" }, line.job_name)),
    el("td", { class: "number right" }, number(line.metrics[metric], "")),
    el("td", { class: "number right" }, money(line.cost)),
    el("td", {}, report.front.includes(line.index) ? "not beaten in both" : "")));
  fill(place, el("h2", { id: "best-title" }, `${goal === "min" ? "Least" : "Greatest"} ${metric}`), el("div", { class: "scroll" }, el("table", { class: "grids" },
    el("caption", { class: "unseen" }, `The best lines by ${metric}`),
    el("thead", {}, el("tr", {}, ["Rank", "Job", metric, `Cost, ${report.currency}`, "Cost and metric"].map((head, at) => el("th", { scope: "col", class: [0, 2, 3].includes(at) ? "right" : null }, head)))),
    el("tbody", {}, rows))));
}

const metrics = () => [...new Set(report.lines.flatMap((line) => Object.keys(line.metrics)))].sort();

function row(line, names) {
  const run = runOf(line), label = said(line) || line.job_name;
  return el("tr", { "data-line": line.index },
    el("td", {}, run ? el("a", { href: run }, label) : label, el("small", { class: "mono" }, `${place(line)}: ${line.job_name}`)),
    el("td", {}, stateBadge(line.state), line.attempts > 1 ? ` attempt ${line.attempts}` : null),
    el("td", {}, line.engine), el("td", { class: "place" }, line.region || "–"),
    el("td", { class: "number right" }, line.seconds === null ? "–" : duration(line.seconds)),
    el("td", { class: "number right" }, money(line.planned_cost)), el("td", { class: "number right" }, money(line.cost)),
    names.map((metric) => el("td", { class: "number right" }, metric in line.metrics ? number(line.metrics[metric], "") : "–")),
    el("td", { class: "why" }, why(line)));
}

function lines() {
  const state = by("filter").elements.state?.value ?? "all";
  const words = by("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (line) => [line.job_name, line.place, said(line), line.region, line.engine, why(line)].join(" ").toLowerCase();
  const found = report.lines.filter((line) => (state === "all" || line.state === state) && words.every((word) => text(line).includes(word)));
  const names = metrics();
  const heads = ["Line", "State", "Engine", "Region", "Time", `Planned, ${report.currency}`, `Cost, ${report.currency}`, ...names, "Why"];
  fill(by("lines").tHead, el("tr", {}, heads.map((head, at) => el("th", { scope: "col", class: at > 3 && at < heads.length - 1 ? "right" : null }, head))));
  fill(by("lines").tBodies[0], found.slice(0, MOST).map((line) => row(line, names)));
  const more = found.length > MOST ? `, the first ${MOST} shown` : "";
  by("count").textContent = (found.length === report.lines.length ? `${found.length} lines` : `${found.length} of ${report.lines.length} lines`) + more;
  history.replaceState(null, "", path(location.pathname, { words: by("words").value, state: state.replace("all", "") }));
}

function chips() {
  const wanted = by("filter").elements.state?.value ?? (start.get("state") || "all");
  const known = ["all", ...STATES.filter((state) => report.states[state] || state === wanted)];
  fill(by("states"), el("legend", { class: "unseen" }, "State"), known.map((value) =>
    el("label", {}, el("input", { type: "radio", name: "state", value, checked: value === wanted }), el("span", {}, value === "all" ? "All" : value))));
}

async function load() {
  try {
    report = await get(url);
  } catch (error) {
    fill(by("trouble"), el("div", { class: "notice" }, error.message, error.hint ? el("div", {}, error.hint) : null));
    return;
  }
  fill(by("trouble"));
  document.title = `${report.name}: ${stateWords(report.states)} · headrace`;
  summary();
  regions();
  best();
  if (!by("states").contains(document.activeElement)) chips();
  lines();
  fill(by("notes"), report.notes.map((note) => el("li", {}, note)));
}

const start = new URLSearchParams(location.search);
by("name").textContent = name;
by("words").value = start.get("words") ?? "";
source(document.querySelector("[data-source]"), `headrace grid report ${name} --output json`, url);
by("filter").addEventListener("input", () => report && lines());
by("filter").addEventListener("submit", (event) => event.preventDefault());
const again = throttle(load, 1500);
await load();
if (report) follow(`${url}/live`, again);
setInterval(() => report && report.ended === null && !document.hidden && again(), 5000);
