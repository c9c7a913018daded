// One grid: the server makes all that changes; the filter asks for other lines.
import { path } from "./api.js";
import { by, regularly, throttle } from "./dom.js";
import { follow } from "./live.js";
import { part, trouble } from "./page.js";

const name = location.pathname.split("/")[2];
const wishes = () => ({ words: by("words").value, state: by("filter").elements.state.value });
const going = () => "going" in by("summary").dataset;
let busy = false;
let stale = false; // something has changed since what is on its way was asked for

async function load() {
  stale = true;
  if (busy) return true;
  busy = true;
  try {
    while (stale) {
      stale = false;
      await part(path(`/parts/grids/${name}`, wishes()));
      document.title = by("summary").dataset.title;
      by("count").textContent = by("lines").dataset.count;
    }
  } catch (error) {
    trouble(error);
    return false;
  } finally {
    busy = false;
  }
  return true;
}

by("filter").addEventListener("input", throttle(() => {
  history.replaceState(null, "", path(location.pathname, wishes()));
  load();
}, 200));
by("filter").addEventListener("submit", (event) => event.preventDefault());
const again = throttle(load, 1500);
if (await load()) follow(`/api/grids/${name}/live`, again);
regularly(load, going, 5000);
