// The life of every host, one lane each, by instance group, on the time axis of the run.
import { el } from "./dom.js";
import { clock, duration } from "./format.js";
import { colour } from "./status.js";

const STATES = ["starting", "ready", "running", "done", "stopping", "lost"];

function segment(part, start, span, end) {
  const until = part.end ?? end;
  const left = (100 * (part.start - start)) / span;
  const width = (100 * (until - part.start)) / span;
  const words = `${part.state}, ${duration(until - part.start)} from ${clock(part.start, 0)} UTC`;
  const made = el("div", { class: "segment", "data-state": part.state, title: words }, width > 9 ? part.state : "");
  made.style.left = `${left}%`;
  made.style.width = `${width}%`;
  return made;
}

function fault(mark, start, span, host, jump) {
  const words = `${clock(mark.t, 0)} UTC, ${host}: ${mark.text}`;
  const made = el("button", { type: "button", class: "fault", title: words, "aria-label": `Fault at ${words}. Show the log lines.` }, "!");
  made.style.left = `${Math.min(99, Math.max(1, (100 * (mark.t - start)) / span))}%`;
  made.addEventListener("click", () => jump(mark.t, { host }));
  return made;
}

/** Returns what a lane says to those who do not see it. */
const spoken = (lane, end) =>
  lane.segments.map((part) => `${part.state} for ${duration((part.end ?? end) - part.start)}`).join(", ") || "not started";

/** Returns the lanes of a run.
 * @param {object} timeline - the document of `headrace timeline`.
 * @param {(t: number, place: object) => void} jump - shows the log lines of a moment.
 */
export function lanes(timeline, jump) {
  const { start, end } = timeline;
  const span = Math.max(end - start, 1e-3);
  const groups = timeline.groups.map((group, index) =>
    el("div", { class: "lane-group", colour: colour(index) },
      el("h3", {}, el("i", { "aria-hidden": "true" }), group.name, el("span", { class: "muted" }, `${group.hosts.length} × ${group.instance_type || "?"}`)),
      group.hosts.map((lane) =>
        el("div", { class: "lane", "data-host": lane.host },
          el("span", {}, lane.host, el("span", { class: "unseen" }, `: ${spoken(lane, end)}`)),
          el("div", { class: "track" },
            lane.segments.map((part) => segment(part, start, span, end)),
            lane.marks.map((mark) => fault(mark, start, span, lane.host, jump)))))));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => el("span", {}, duration(part * span)));
  const used = new Set(timeline.groups.flatMap((group) => group.hosts.flatMap((lane) => lane.segments.map((part) => part.state))));
  const legend = STATES.filter((state) => used.has(state)).map((state) =>
    el("span", {}, el("i", { "aria-hidden": "true" }, el("div", { class: "segment", "data-state": state })), state));
  return el("div", { class: "lanes card" }, groups,
    el("div", { class: "lane-axis", "aria-hidden": "true" }, el("span"), el("div", { class: "ticks" }, ticks)),
    el("div", { class: "legend-states", "aria-hidden": "true" }, legend));
}
