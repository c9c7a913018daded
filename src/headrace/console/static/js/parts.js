// Parts of the job page that come from its report: figures, verdict, cost, tables, notes.
import { run as runPath } from "./api.js";
import { el, fill } from "./dom.js";
import { Origin, card, cell, isFigure } from "./figure.js";
import { title } from "./format.js";
import { heading } from "./source.js";
import { verdictBadge, verdictKind } from "./status.js";
import { figuresTable, programsTable } from "./tables.js";

const command = (id) => `headrace report ${id} --output json`;

export class ReportParts {
  /** @param {string} id - run. @param {object} places - sections by name. */
  constructor(id, places) {
    this.id = id;
    this.places = places;
    this.url = runPath(id, "report");
  }

  head(words, name) {
    return heading(`${name}-title`, words, command(this.id), this.url);
  }

  show(report) {
    const origin = new Origin(command(this.id), report.formulas);
    this.figures(report, origin);
    this.verdict(report.verdict, origin);
    this.cost(report.cost, origin);
    this.tables(report, origin);
  }

  waiting() {
    fill(this.places.figures, this.head("Figures", "figures"), el("p", { class: "muted", role: "status" }, "reading the metrics …"));
  }

  failed(error) {
    fill(this.places.figures, this.head("Figures", "figures"), el("div", { class: "notice" }, error.message, error.hint ? el("div", {}, error.hint) : null));
  }

  figures(report, origin) {
    const training = report.training ?? {};
    const shown = [
      [report.time_to_train, "time_to_train"],
      ...["step_time", "samples_per_second", "data_wait", "h2d", "compute", "queue", "steps"].map((name) => [training[name], `training.${name}`]),
      [report.cost?.total, "cost.total"],
    ].filter(([figure]) => isFigure(figure) && (figure.value !== null || ["time_to_train", "data_wait", "cost"].includes(figure.name)));
    fill(this.places.figures, this.head("Figures", "figures"),
      report.unread ? el("div", { class: "notice", role: "status" }, report.unread) : null,
      el("div", { class: "figures" }, shown.map(([figure, field]) => card(figure, field, origin, field === "cost.total" && report.ended === null ? "Cost so far" : title(figure.name)))));
  }

  verdict(verdict, origin) {
    const place = this.places.verdict;
    place.hidden = !verdict;
    if (!verdict) return;
    const evidence = verdict.evidence.map((figure, index) => el("span", {}, `${title(figure.name)} `, cell(figure, `verdict.evidence[${index}]`, origin)));
    fill(place, el("div", { class: "verdict card", "data-kind": verdictKind(verdict.name) },
      el("div", { class: "section-head" }, el("h2", { id: "verdict-title" }, "Verdict"), verdictBadge(verdict)),
      el("p", {}, verdict.sentence),
      verdict.next ? el("p", { class: "muted" }, verdict.next) : null,
      evidence.length ? el("div", { class: "evidence" }, evidence) : null,
      el("details", {}, el("summary", {}, "the rule that applied"), el("p", { class: "formula" }, verdict.formula), verdict.notes.map((note) => el("p", { class: "formula" }, note)))));
  }

  cost(cost, origin) {
    const place = this.places.cost;
    place.hidden = !cost;
    if (!cost) return;
    const sums = ["total", "platform", "per_hour", "per_step", "per_epoch", "per_1000_samples"].filter((name) => isFigure(cost[name]) && (cost[name].value !== null || name === "per_1000_samples"));
    const price = (group) => (group.price ? `${group.price.price} ${group.price.unit}` : "no price known");
    const from = (group) => (group.price ? `${group.price.source}, ${group.price.as_of}, ${group.price.status}` : "");
    fill(place, this.head("Cost", "cost"), el("div", { class: "card" },
      figuresTable("Cost by instance group", cost.groups, "cost.groups",
        (group) => [group.group, `${group.instances} × ${group.instance_type}`, price(group), from(group)],
        ["Group", "Instances", `List price, ${cost.region}`, "Source, date"], origin),
      el("div", { class: "figures" }, sums.map((name) => card(cost[name], `cost.${name}`, origin))),
      el("p", { class: "formula" }, `cost = ${cost.formulas.cost}; in ${cost.currency}`),
      cost.notes.map((note) => el("p", { class: "formula" }, note))));
  }

  tables(report, origin) {
    const where = (one) => (one.rank ? `${one.group}/${one.host}[${one.rank}]` : `all ${one.ranks} ranks`);
    fill(this.places.tables, this.head("Groups, workers, loaders, programs", "tables"), el("div", { class: "card" },
      figuresTable("Instance groups", report.groups, "groups", (group) => [group.name, group.hosts.join(" "), group.cores ?? "–"], ["Group", "Hosts", "Cores"], origin),
      figuresTable("Data workers", report.workers, "workers", (one) => [one.group, one.hosts.join(" "), String(one.executors)], ["Data workers of", "Hosts", "Executors"], origin),
      figuresTable("Servers of tf.data.service", report.servers, "servers", (one) => [`${one.group}/${one.host}[${one.stream}]`, one.role, String(one.restarts)], ["tf.data server", "Role", "Restarts"], origin),
      figuresTable("Values", report.values, "values", (one) => [one.name, one.programs.join(" ")], ["Value", "Programs"], origin),
      figuresTable("Loaders", report.loaders, "loaders", (one) => [one.loader, where(one)], ["Loader", "Rank"], origin),
      programsTable(report.programs, report.ended === null),
      report.notes.length ? el("ul", { class: "formula" }, report.notes.map((note) => el("li", {}, note))) : null));
  }
}
