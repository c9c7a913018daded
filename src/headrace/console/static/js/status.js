// Badges: how a run stands, and what its verdict is. Each has a sign and a word beside its colour.
import { el } from "./dom.js";

const KINDS = { Completed: "good", Failed: "bad", Stopped: "stopped", MaxRuntimeExceeded: "bad", InProgress: "going", Stopping: "going" };

/** Returns the badge of a run's status. */
export function statusBadge(line) {
  const second = line.secondary_status && line.secondary_status !== line.status ? line.secondary_status : line.status;
  const words = second.replace(/([a-z])([A-Z])/g, "$1 $2");
  const badge = el("span", { class: "badge", "data-kind": KINDS[line.status] ?? "plain" }, words);
  return line.degraded ? [badge, " ", el("span", { class: "badge", "data-kind": "warn", title: "the data service lost workers or servers while the job went on" }, "Degraded")] : [badge];
}

const VERDICTS = { "input-bound": "bad", "network-bound": "bad", stalled: "bad", skewed: "warn", "compute-bound": "good", balanced: "good" };
export const verdictKind = (name) => VERDICTS[name] ?? "plain";

/** Returns the badge of a verdict. */
export function verdictBadge(verdict) {
  return el("span", { class: "badge", "data-kind": verdictKind(verdict.name), title: verdict.sentence },
    verdict.name, verdict.inferred ? " (inferred)" : "");
}

/** Returns the colour of the n-th group or line. */
export const colour = (index) => `var(--c${index % 8})`;

/** Returns an instance group as a small block: a bar a host, its name, number and type; the n-th of its run, in whose colour
 * all pages show it. */
export function groupBlock(group, index) {
  const hosts = group.hosts.length;
  const bars = Array.from({ length: Math.min(hosts, 12) }, () => el("i"));
  const type = group.instance_type.replace(/^ml\./, "");
  return el("span", { class: "group", colour: colour(index), title: `${group.name}: ${hosts} × ${group.instance_type}` },
    el("span", { class: "hosts", "aria-hidden": "true" }, bars), `${group.name} `, el("span", { class: "muted" }, `${hosts} × ${type}`));
}
