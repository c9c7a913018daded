// The grids of this machine, newest first.
import { by, regularly } from "./dom.js";
import { part, trouble } from "./page.js";

const load = () => part("/parts/grids").catch((error) => trouble(error));
await load();
regularly(load, () => "going" in by("list").dataset, 3000);
