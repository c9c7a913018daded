// Runs side by side: the rows of `headrace compare`.
import { get, path, run as runPath } from "./api.js";
import { by, el, fill } from "./dom.js";
import { Origin, cell } from "./figure.js";
import { moment, number, title } from "./format.js";
import { Plot, merged } from "./plot.js";
import { source } from "./source.js";
import { statusBadge, verdictBadge } from "./status.js";

const wanted = new URLSearchParams(location.search).getAll("run");

function picker(lines, value, index) {
  const words = index ? `Run ${index + 1}` : "First run, which the others are compared with";
  const field = el("select", { "aria-label": words, name: "run" }, el("option", { value: "" }, index < 2 ? "choose a run" : "add a run"),
    [...lines].reverse().map((line) => el("option", { value: line.run_id, selected: line.run_id === value }, `${line.job_name} · ${moment(line.created)} · ${line.status}`)));
  field.addEventListener("change", () => {
    const runs = [...by("choose").querySelectorAll("select")].map((one) => one.value).filter(Boolean);
    location.assign(path("/compare", { run: runs }));
  });
  return field;
}

function row(found, entry, index, origin) {
  const most = Math.max(...entry.cells.map(({ figure }) => Math.abs(figure.value ?? 0)));
  const name = title(entry.name) + (entry.group ? ` · ${entry.group}` : "");
  return el("tr", {}, el("th", { scope: "row" }, name), entry.cells.map(({ figure, ratio, differs, noise }, at) => {
    const bar = el("i");
    bar.style.width = most > 0 ? `${(100 * Math.abs(figure.value ?? 0)) / most}%` : "0";
    const range = figure.spread ? `${number(figure.spread.low, figure.unit)} – ${number(figure.spread.high, figure.unit)}` : figure.note;
    return el("td", { class: at ? null : "first" },
      el("span", { class: "value" }, cell(figure, `rows[${index}].cells[${at}].figure`, origin, name)),
      at && ratio !== null ? el("span", { class: "ratio", "data-field": `rows[${index}].cells[${at}].ratio`, "data-command": origin.command, "data-value": ratio }, `× ${ratio.toFixed(2)}`) : null,
      differs === true ? el("span", { class: "sure", title: "beyond the noise of the steps, with 95 % confidence" }, "differs") : null,
      differs === false ? el("span", { class: "ratio", title: "not beyond the noise of the steps, with 95 % confidence" }, "within the noise") : null,
      noise ? el("span", { class: "ratio", title: "whether the noise of the steps explains the difference" }, noise) : null,
      figure.value === null ? null : el("div", { class: "meter", "aria-hidden": "true" }, bar),
      el("span", { class: "spread" }, range));
  }));
}

function show(found, origin) {
  fill(by("result"),
    found.summary?.length ? el("ul", { class: "summary card" }, found.summary.map((words) => el("li", {}, words))) : null,
    el("div", { class: "scroll" }, el("table", { class: "compared" },
      el("caption", { class: "unseen" }, "Figures of the runs; ratios are to the first run"),
      el("thead", {}, el("tr", {}, el("td"), found.runs.map((run) => el("th", { scope: "col" },
        el("a", { href: `/runs/${encodeURIComponent(run.run_id)}` }, run.job_name), " ", statusBadge(run), " ",
        run.verdict ? verdictBadge(run.verdict) : null, el("small", { class: "mono" }, run.run_id))))),
      el("tbody", {}, found.rows.map((entry, index) => row(found, entry, index, origin))))),
    el("h2", {}, "Notes"),
    el("ul", { class: "notes" }, [...found.notes, "× is the ratio to the first run; under each value its 10th to 90th percentile of the seconds"].map((note) => el("li", {}, note))));
}

/** Draws one quantity of all runs in one chart, by the time since their start or by step. */
async function curves(runs) {
  const found = await Promise.all(runs.map((run) => get(runPath(run.run_id, "metrics"))));
  const charts = new Map(found.flatMap((one) => one.charts).sort((one, other) => other.name.startsWith("value:") - one.name.startsWith("value:")).map((chart) => [chart.name, chart]));
  if (!charts.size) return;
  const quantity = el("select", { "aria-label": "What the curves show" }, [...charts.values()].map((chart) => el("option", { value: chart.name }, chart.title)));
  const axis = el("select", { "aria-label": "Over what" }, el("option", { value: "step" }, "by step"), el("option", { value: "since" }, "by time"));
  const names = runs.map((one) => (runs.filter((other) => other.job_name === one.job_name).length > 1 ? one.run_id : one.job_name));
  const place = el("div", { class: "charts curves" });
  let plot = null;
  let again = () => {};
  const draw = () => {
    const chart = charts.get(quantity.value);
    const lines = found.flatMap((one, index) => (one.charts.find((other) => other.name === chart.name)?.lines ?? []).map((line, _, all) => ({
      ...line, group: runs[index].run_id, name: all.length > 1 ? `${names[index]} · ${line.name}` : names[index],
      since: one.t.map((t) => t - one.start) })));
    const over = lines.some((line) => line.steps) ? axis.value : "since";
    axis.disabled = !lines.some((line) => line.steps);
    const [places, drawn, whole] = merged(lines.filter((line) => line[over === "step" ? "steps" : over]).map((line) => ({ ...line, x: line[over === "step" ? "steps" : over] })));
    const shown = { ...chart, lines: drawn, stacked: false };
    again = (scale = whole) => plot.take(places, shown, scale, over);
    plot = new Plot(shown, { groups: runs.map((run) => run.run_id), marks: () => [], onJump: () => {}, onZoom: (...range) => again(range), onReset: () => again(), info: () => null });
    fill(place, plot.element);
    again();
  };
  for (const field of [quantity, axis]) field.addEventListener("change", draw);
  by("result").append(el("h2", {}, "Curves"), el("div", { class: "bar" }, quantity, axis), place);
  new ResizeObserver(() => plot.resize()).observe(place);
  addEventListener("themechange", () => plot.draw());
  draw();
}

function pickers(lines, ids) {
  fill(by("choose"), [...ids, "", ""].slice(0, Math.max(2, ids.length + 1)).map((value, index) => picker(lines, value, index)));
}

async function start() {
  const lines = await get("/api/runs");
  pickers(lines, wanted);
  const place = document.querySelector("[data-source]");
  if (wanted.length < 2) {
    fill(by("result"), el("p", { class: "empty" }, "Choose two runs or more."));
    return;
  }
  const command = `headrace compare ${wanted.join(" ")} --output json`;
  const url = path("/api/compare", { run: wanted });
  source(place, command, url);
  const found = await get(url);
  pickers(lines, found.runs.map((run) => run.run_id)); // the address may name jobs
  show(found, new Origin(command, found.formulas));
  await curves(found.runs);
}

try {
  await start();
} catch (error) {
  fill(by("trouble"), el("div", { class: "notice" }, error.message, error.hint ? el("div", {}, error.hint) : null));
}
