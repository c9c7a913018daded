// Runs side by side: the server makes the table and the curves.
import { path } from "./api.js";
import { Charts } from "./charts.js";
import { by } from "./dom.js";
import { part, trouble } from "./page.js";

const runs = new URLSearchParams(location.search).getAll("run").filter(Boolean);
const chosen = (name) => by("curves").querySelector(`[name=${name}]`)?.value;
const charts = new Charts(() => by("curves"), (zoom) => path("/parts/curves", { run: runs, chart: chosen("chart"), axis: chosen("axis"), start: zoom?.[0], end: zoom?.[1] }));

addEventListener("change", (event) => {
  if (event.target.closest("#choose")) location.assign(path("/compare", { run: [...by("choose").querySelectorAll("select")].map((one) => one.value) }));
  if (event.target.closest("#curves")) {
    charts.zoom = null;
    charts.load();
  }
});
try {
  await part(path("/parts/compare", { run: runs }));
  if (runs.length > 1) await charts.load();
} catch (error) {
  trouble(error);
}
