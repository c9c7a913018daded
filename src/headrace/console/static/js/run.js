// The job page: puts its parts together and keeps them up to date.
import { get, run as runPath } from "./api.js";
import { Charts } from "./charts.js";
import { by, el, fill, throttle } from "./dom.js";
import { clock, duration, moment } from "./format.js";
import { lanes } from "./lanes.js";
import { follow } from "./live.js";
import { Logs } from "./logs.js";
import { ReportParts } from "./parts.js";
import { heading, source } from "./source.js";
import { statusBadge } from "./status.js";

const asked = decodeURIComponent(location.pathname.split("/").at(-1));
const id = await get(runPath(asked, "timeline")).then((found) => found.run_id, () => asked); // a job's name is its newest run
const logs = new Logs(by("logs"), id);
const charts = new Charts(by("charts"), id, (t, place, width) => logs.jump(t, place, width));
const parts = new ReportParts(id, Object.fromEntries(["figures", "verdict", "cost", "tables"].map((name) => [name, by(name)])));

function head(status, timeline) {
  const ours = status.headrace;
  const line = { status: status.TrainingJobStatus, secondary_status: status.SecondaryStatus, degraded: ours.degraded };
  document.title = `${status.TrainingJobName} · headrace`;
  const seconds = timeline.end - timeline.start;
  const facts = [["run", el("span", { class: "mono" }, id)], ["engine", ours.engine], ["started", `${moment(timeline.start)} UTC`],
    [timeline.finished ? "took" : "for", duration(seconds)], ...(ours.attempt > 1 ? [["attempt", String(ours.attempt)]] : [])];
  const where = el("span", { class: "source" });
  source(where, `headrace status ${id} --output json`, runPath(id, "status"));
  fill(by("head"),
    el("div", { class: "head" }, el("h1", {}, status.TrainingJobName), statusBadge(line), where),
    el("div", { class: "facts" }, facts.map(([name, value]) => el("span", {}, `${name} `, el("b", {}, value)))));
  return ours.cause && status.TrainingJobStatus !== "Completed" ? ours.cause : null;
}

function trouble(cause, damage, error) {
  const place = cause?.host ? `${cause.group}/${cause.host}${cause.stream ? `[${cause.stream}]` : ""}: ` : "";
  fill(by("trouble"),
    error ? el("div", { class: "notice" }, el("b", {}, error.message), error.hint ? el("div", {}, error.hint) : null) : null,
    cause ? el("div", { class: "notice" }, el("b", {}, `${place}${cause.reason}`), cause.last_lines?.length ? el("pre", {}, cause.last_lines.join("\n")) : null) : null,
    damage.length ? el("div", { class: "notice mild" }, "Parts of this run cannot be read. What can be read is shown.",
      el("ul", {}, damage.slice(0, 20).map((one) => el("li", {}, `${one.path}${one.line ? `, line ${one.line}` : ""}: ${one.reason}`))),
      damage.length > 20 ? `and ${damage.length - 20} more` : null) : null);
}

function events(timeline) {
  const faults = timeline.events.filter((event) => event.fault).length;
  const list = timeline.events.map((event) => el("li", { class: event.fault ? "is-fault" : null },
    el("button", { type: "button", title: "Show the log lines of that moment", onclick: () => logs.jump(event.t, event) }, clock(event.t, 1)),
    el("span", { class: "muted" }, event.host ? `${event.group}/${event.host}` : "the job"),
    el("span", {}, event.fault ? "! " : "", event.text)));
  fill(by("events"), heading("events-title", `Events`, `headrace timeline ${id} --output json`, runPath(id, "timeline")),
    el("div", { class: "card" }, el("p", { class: "unseen" }, `${list.length} events, ${faults} faults`), el("ol", { class: "events", tabindex: "0", "aria-label": "Events" }, list)));
}

async function life() {
  const timeline = await get(runPath(id, "timeline"));
  let status = null;
  let error = null;
  try {
    status = await get(runPath(id, "status"));
  } catch (problem) {
    error = problem;
    fill(by("head"), el("div", { class: "head" }, el("h1", {}, id), el("span", { class: "badge", "data-kind": "bad" }, "Damaged")));
  }
  trouble(status ? head(status, timeline) : null, timeline.damage, error);
  charts.timeline = timeline;
  logs.groups = timeline.groups.map((group) => group.name);
  fill(by("lanes"), heading("lanes-title", "Hosts", `headrace timeline ${id} --output json`, runPath(id, "timeline")),
    lanes(timeline, (t, place) => logs.jump(t, place)));
  events(timeline);
  return timeline;
}

async function figures() {
  try {
    parts.show(await get(runPath(id, "report")));
  } catch (error) {
    parts.failed(error);
  }
}

async function start() {
  let finished;
  try {
    ({ finished } = await life());
  } catch (error) {
    fill(by("head"), el("h1", {}, id));
    trouble(null, [], error);
    return;
  }
  logs.follows.checked = !finished;
  await Promise.all([charts.load(), logs.restart()]); // at once, however long the run
  parts.waiting();
  figures(); // they take seconds for a run of a million steps
  const [renewLife, renewCharts, renewFigures] = [throttle(life, 1000), throttle(() => charts.load(), 1000), throttle(figures, 3000)];
  let known = {};
  follow(runPath(id, "live"), (now, last) => {
    if (last || now.events !== known.events || now.finished !== known.finished) renewLife();
    if (last || now.metrics !== known.metrics) renewCharts();
    if (last || now.metrics !== known.metrics || now.events !== known.events) renewFigures();
    // The first news, too: a run that goes on may have written lines since its log was read.
    if (now.logs !== known.logs && !finished) logs.grown();
    known = now;
  });
}

await start();
