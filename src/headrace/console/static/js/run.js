// The job page: puts its parts together and keeps them up to date.
import { path, run as runPath } from "./api.js";
import { Charts } from "./charts.js";
import { by, throttle } from "./dom.js";
import { follow } from "./live.js";
import { Logs } from "./logs.js";
import { part, trouble } from "./page.js";

const asked = location.pathname.split("/").at(-1);
const life = () => part(`/parts/runs/${asked}/life`).then(named);
const figures = () => part(`/parts/runs/${asked}/report`).catch((error) => trouble(error, by("figures")));
let logs = null;

function named() {
  document.title = `${document.querySelector("h1").textContent} · headrace`;
  if (logs) logs.groups = [...document.querySelectorAll(".lane-group")].map((group) => group.dataset.group);
}

async function start() {
  try {
    await life();
  } catch (error) {
    trouble(error);
    return;
  }
  const id = by("head").dataset.run; // a job's name is its newest run
  const finished = "finished" in by("head").dataset;
  logs = new Logs(by("logs"), id);
  const url = (zoom, steps) => path(`/parts/runs/${asked}/charts`, { start: zoom?.[0], end: zoom?.[1], step: steps });
  const charts = new Charts(() => by("charts"), url, (t, place, width) => logs.jump(t, place, width));
  addEventListener("click", (event) => {
    const at = event.target.closest?.("[data-t]");
    if (at) logs.jump(Number(at.dataset.t), { host: at.dataset.of });
  });
  named();
  logs.follows.checked = !finished;
  await Promise.all([charts.load(), logs.restart()]); // at once, however long the run
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
