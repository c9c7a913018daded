// The first page: all runs, newest first, with filters. Verdict, data wait and cost come from each run's report, asked
// for only when its row is seen.
import { path } from "./api.js";
import { by, regularly, throttle } from "./dom.js";
import { follow } from "./live.js";
import { fragment, trouble } from "./page.js";

const rows = new Map(); // by run id: {row, html: as the server made it, cells: those of its report, asked: for it}
const chosen = new Set();
const asked = [];
let asking = 0;

function filter() {
  const state = by("filter").elements.state.value;
  const words = by("words").value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const { row } of rows.values()) {
    row.hidden = !(!state || row.dataset.state.split(" ").includes(state)) || !words.every((word) => row.dataset.text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  by("count").textContent = shown === rows.size ? `${rows.size} runs` : `${shown} of ${rows.size} runs`;
  by("runs").hidden = !rows.size;
  by("empty").hidden = shown > 0;
  by("empty").textContent = rows.size ? "No run matches." : "No run yet: start one with `headrace run job.yaml`.";
  history.replaceState(null, "", path("/", { words: by("words").value, state }));
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

function pump() {
  while (asking < 3 && asked.length) {
    const entry = asked.shift();
    asking += 1;
    fragment(`/parts/runs/${encodeURIComponent(entry.row.dataset.run)}/row`)
      .then((made) => {
        entry.cells = [...made.querySelectorAll("td")];
        cells(entry);
      }, (error) => [...entry.row.cells].slice(6).forEach((cell) => Object.assign(cell, { textContent: "–", title: error.message })))
      .finally(() => {
        asking -= 1;
        pump();
      });
  }
}

function cells({ row, cells }) {
  if (cells && !row.querySelector(":popover-open")) [...row.cells].slice(6).forEach((cell, at) => cell.replaceWith(cells[at]));
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

/** Takes the rows: those that are as before stay, so that a reader loses neither focus nor choice. */
function take(fresh) {
  const ids = new Set(fresh.map((row) => row.dataset.run));
  for (const [id, { row }] of rows) if (!ids.has(id) && rows.delete(id)) row.remove();
  let before = null;
  for (const row of fresh) {
    const id = row.dataset.run;
    const html = row.outerHTML;
    const entry = rows.get(id) ?? { row, cells: null, asked: false };
    const isNew = !rows.has(id);
    rows.set(id, entry);
    if (isNew) {
      if (before) before.after(row);
      else by("rows").prepend(row);
    } else if (entry.html !== html && !entry.row.querySelector(":popover-open, :focus")) {
      if (entry.row.dataset.key !== row.dataset.key && entry.asked) asked.push(entry);
      seen.unobserve(entry.row);
      entry.row.replaceWith(row);
      entry.row = row;
      cells(entry);
    }
    entry.html = html;
    entry.row.querySelector("input").checked = chosen.has(id);
    if (isNew || entry.row === row) seen.observe(entry.row);
    before = entry.row;
  }
  pump();
  filter();
}

async function load() {
  try {
    const made = await fragment("/parts/runs");
    by("trouble").replaceWith(made.getElementById("trouble"));
    take([...made.querySelectorAll("tr")]);
  } catch (error) {
    trouble(error);
  }
}

by("runs").addEventListener("change", (event) => choose(event.target.closest("tr").dataset.run, event.target.checked));
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
regularly(load, () => by("rows").querySelector("[data-state^=going]"), 5000);
