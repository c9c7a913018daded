// A figure: value, unit and spread; on demand its window, its formula, and the field and command that it comes from.
import { el, fill } from "./dom.js";
import { duration, moment, number, parts, title } from "./format.js";

const shown = el("div", { popover: "auto", id: "details", role: "dialog", "aria-labelledby": "details-title" });
document.body.append(shown);

/** Returns whether something in a document is a figure. */
export const isFigure = (found) => found !== null && typeof found === "object" && "unit" in found && "value" in found && "name" in found;

/** Where a document comes from: its command, and its formulas by name. */
export class Origin {
  constructor(command, formulas = {}) {
    this.command = command;
    this.formulas = formulas;
  }
}

function details(figure, field, origin, words) {
  const range = figure.spread
    ? `${number(figure.spread.low, figure.unit)} to ${number(figure.spread.high, figure.unit)}, 10th to 90th percentile of ${figure.spread.count} seconds`
    : null;
  const rows = [
    ["Value", number(figure.value, figure.unit)],
    ["Spread", range],
    ["True mean", figure.confidence ? `${number(figure.confidence.low, figure.unit)} to ${number(figure.confidence.high, figure.unit)}` : null],
    ["Window", figure.window ? `${moment(figure.window.start)} UTC, ${duration(figure.window.end - figure.window.start)}` : null],
    ["Formula", origin.formulas[figure.name] ?? null],
    ["Note", figure.note || null],
    ["Command", el("code", {}, origin.command)],
    ["Field", el("code", {}, `${field}.value`)],
  ];
  return [
    el("h3", { id: "details-title" }, words),
    el("dl", {}, rows.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  ];
}

/** Opens the details of a figure beside a button. */
function open(button, figure, field, origin, words) {
  fill(shown, ...details(figure, field, origin, words));
  const box = button.getBoundingClientRect();
  Object.assign(shown.style, { position: "fixed", inset: "auto", margin: "0" });
  shown.showPopover();
  const size = shown.getBoundingClientRect();
  const top = box.bottom + 6 + size.height > innerHeight ? Math.max(6, box.top - size.height - 6) : box.bottom + 6;
  shown.style.top = `${top}px`;
  shown.style.left = `${Math.max(6, Math.min(box.left, innerWidth - size.width - 6))}px`;
}

const traced = (figure, field, origin) => ({
  "data-field": `${field}.value`, "data-command": origin.command, "data-value": figure.value === null ? "null" : String(figure.value),
});

function button(kind, figure, field, origin, words, ...inside) {
  const made = el("button", { type: "button", class: kind, "aria-haspopup": "dialog", ...traced(figure, field, origin) }, ...inside);
  made.addEventListener("click", () => open(made, figure, field, origin, words));
  return made;
}

/** Returns a figure as a card. */
export function card(figure, field, origin, words = title(figure.name)) {
  const [text, unit] = parts(figure.value, figure.unit);
  const spread = figure.spread && `${number(figure.spread.low, figure.unit)} – ${number(figure.spread.high, figure.unit)}`;
  return button("figure card", figure, field, origin, words,
    el("span", { class: "name" }, words),
    el("span", { class: "value" }, text, unit ? el("small", {}, ` ${unit}`) : ""),
    el("span", { class: "spread" }, figure.value === null ? figure.note : spread ?? ""));
}

/** Returns a figure for the cell of a table, or for a line of text. */
export function cell(figure, field, origin, words = title(figure.name)) {
  return button("cell-figure", figure, field, origin, words, number(figure.value, figure.unit));
}
