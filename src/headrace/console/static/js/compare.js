// Runs side by side: the rows of `headrace compare` come from the server; their curves are drawn here.
import { get, path, run as runPath } from "./api.js";
import { by, el, fill } from "./dom.js";
import { part, trouble } from "./page.js";
import { Plot, merged } from "./plot.js";

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
  fill(by("curves"), el("h2", {}, "Curves"), el("div", { class: "bar" }, quantity, axis), place);
  new ResizeObserver(() => plot.resize()).observe(place);
  addEventListener("themechange", () => plot.draw());
  draw();
}

addEventListener("change", (event) => {
  if (event.target.closest("#choose")) location.assign(path("/compare", { run: [...by("choose").querySelectorAll("select")].map((one) => one.value) }));
});
try {
  await part(`/parts/compare${location.search}`);
  const runs = [...by("result").querySelectorAll("a[data-run]")].map((link) => ({ run_id: link.dataset.run, job_name: link.textContent }));
  if (runs.length) await curves(runs);
} catch (error) {
  trouble(error);
}
