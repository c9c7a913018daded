// Tables of a report: any list of parts whose fields are figures becomes rows and columns. What a later headrace adds to
// a report is shown without a change here.
import { el } from "./dom.js";
import { cell, isFigure } from "./figure.js";
import { duration, title } from "./format.js";

/** Returns a table of parts of a report; columns without any value are left out.
 * @param {string} caption - what it shows.
 * @param {object[]} parts - e.g. the groups of a report.
 * @param {string} field - where they are in the document, e.g. `groups`.
 * @param {(part: object) => string[]} names - first cells of a row.
 * @param {string[]} heads - their titles.
 */
export function figuresTable(caption, parts, field, names, heads, origin) {
  if (!parts?.length) return null;
  const fields = Object.keys(parts[0]).filter((name) => isFigure(parts[0][name]) && parts.some((part) => part[name]?.value !== null));
  return el("div", { class: "scroll" }, el("table", {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)), fields.map((name) => el("th", { scope: "col", class: "right" }, title(parts.find((part) => isFigure(part[name]))[name].name))))),
    el("tbody", {}, parts.map((part, index) => el("tr", {},
      names(part).map((text) => el("td", { class: String(text).length < 24 ? "number" : null }, text)),
      fields.map((name) => el("td", { class: "right" }, isFigure(part[name]) ? cell(part[name], `${field}[${index}].${name}`, origin) : "–")))))));
}

/** Returns the programs of a report, and how they ended. */
export function programsTable(programs, ongoing) {
  if (!programs.length) return null;
  const how = (one) => {
    if (one.exit_code === null && one.signal === null) return ongoing ? "running" : "no exit seen";
    return (one.signal === null ? `exit code ${one.exit_code}` : `signal ${one.signal}`) + (one.stopped ? " (stopped)" : "");
  };
  return el("div", { class: "scroll" }, el("table", {},
    el("caption", { class: "unseen" }, "Programs"),
    el("thead", {}, el("tr", {}, ["Program", "Ended", "Ran for"].map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, programs.map((one) => el("tr", {},
      el("td", {}, `${one.group}/${one.host}[${one.stream}]`), el("td", {}, how(one)),
      el("td", { class: "number" }, one.seconds === null ? "–" : duration(one.seconds)))))));
}
