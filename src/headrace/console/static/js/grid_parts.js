// What the list of grids and the page of one have in common: badges and bars of states.
import { el } from "./dom.js";

export const STATES = ["completed", "running", "starting", "waiting", "stopped early", "stopped", "unplaced", "failed"];
const KINDS = { completed: "good", failed: "bad", running: "going", starting: "going", "stopped early": "stopped", stopped: "stopped", unplaced: "warn" };

/** Returns the badge of a line's state. */
export const stateBadge = (state) => el("span", { class: "badge", "data-kind": KINDS[state] ?? "plain" }, state);

/** Returns the states of a grid's lines in words, e.g. "3 completed, 1 running". */
export const stateWords = (states) => STATES.filter((state) => states[state]).map((state) => `${states[state]} ${state}`).join(", ");

/** Returns a bar with a part for each state.
 * @param {object} states - number of lines by state.
 * @param {number} lines - of the grid.
 */
export function progress(states, lines) {
  const parts = STATES.filter((state) => states[state]).map((state) => {
    const part = el("i", { "data-state": state });
    part.style.width = `${(100 * states[state]) / Math.max(1, lines)}%`;
    return part;
  });
  return el("div", { class: "progress", role: "img", "aria-label": stateWords(states), title: stateWords(states) }, parts);
}
