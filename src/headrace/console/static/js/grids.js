// The grids of this machine, newest first.
import { by } from "./dom.js";
import { part, trouble } from "./page.js";

const load = () => part("/parts/grids").catch((error) => trouble(error));
await load();
setInterval(() => "going" in by("list").dataset && !document.hidden && load(), 3000);
