// One grid: the server makes all that changes; the filter asks for other lines.
import { path } from "./api.js";
import { by, throttle } from "./dom.js";
import { follow } from "./live.js";
import { part, trouble } from "./page.js";

const name = location.pathname.split("/")[2];
const wishes = () => ({ words: by("words").value, state: by("filter").elements.state.value });
const going = () => "going" in by("summary").dataset;
let serial = 0;

async function load() {
  serial += 1;
  const mine = serial;
  try {
    await part(path(`/parts/grids/${name}`, wishes()));
  } catch (error) {
    trouble(error);
    return false;
  }
  if (mine !== serial) return load(); // the filter was changed meanwhile
  document.title = by("summary").dataset.title;
  by("count").textContent = by("lines").dataset.count;
  return true;
}

by("filter").addEventListener("input", throttle(() => {
  history.replaceState(null, "", path(location.pathname, wishes()));
  load();
}, 200));
by("filter").addEventListener("submit", (event) => event.preventDefault());
const again = throttle(load, 1500);
if (await load()) follow(`/api/grids/${name}/live`, again);
setInterval(() => going() && !document.hidden && again(), 5000);
