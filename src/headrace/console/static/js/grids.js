// The grids of this machine, newest first.
import { get } from "./api.js";
import { by, el, fill } from "./dom.js";
import { ago, amount, duration, moment } from "./format.js";
import { progress, stateWords } from "./grid_parts.js";
import { source } from "./source.js";

function row(grid) {
  const now = Date.now() / 1000;
  return el("tr", {},
    el("td", {}, el("a", { href: `/grids/${encodeURIComponent(grid.name)}` }, grid.name), el("small", {}, grid.file)),
    el("td", {}, progress(grid.states, grid.lines)),
    el("td", {}, `${grid.lines}: ${stateWords(grid.states)}`),
    el("td", {}, grid.regions.join(" ") || "–"),
    el("td", { class: "number", title: `${moment(grid.created)} UTC` }, ago(grid.created, now)),
    el("td", { class: "number right" }, duration(Math.max(0, (grid.ended ?? now) - grid.created))),
    el("td", { class: "number right" }, `${amount(grid.cost)} USD`));
}

let going = false;

async function load() {
  try {
    const found = await get("/api/grids");
    going = found.grids.some((grid) => grid.ended === null);
    by("grids").hidden = !found.grids.length;
    by("empty").hidden = found.grids.length > 0;
    fill(by("grids").tBodies[0], found.grids.map(row));
    fill(by("trouble"), found.unread.map((one) => el("div", { class: "notice mild" }, `${one.name} cannot be read: ${one.error}`)));
  } catch (error) {
    fill(by("trouble"), el("div", { class: "notice" }, error.message, error.hint ? ` – ${error.hint}` : ""));
  }
}

source(document.querySelector("[data-source]"), "headrace grid list --output json", "/api/grids");
await load();
setInterval(() => going && !document.hidden && load(), 3000);
