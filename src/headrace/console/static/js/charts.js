// The charts of a run: one time axis and one cursor for all, zoom by dragging, finer values asked for when zoomed.
import { get, run as runPath } from "./api.js";
import { el, fill, say } from "./dom.js";
import { duration, moment } from "./format.js";
import { Plot, merged } from "./plot.js";
import { source } from "./page.js";

const POINTS = 400;

/** Returns the instance groups of the run, in the order in which all pages colour them. */
export const groups = () => [...document.querySelectorAll(".lane-group")].map((group) => group.dataset.group);

export class Charts {
  /** @param {HTMLElement} place - the section. @param {string} id - run. @param {(t: number, place: object, width: number) => void} jump */
  constructor(place, id, jump) {
    this.place = place;
    this.id = id;
    this.jump = jump;
    this.plots = new Map();
    this.zoom = null;
    this.stepped = new Set(); // charts over steps
    this.grid = el("div", { class: "charts" });
    this.notes = el("p", { class: "formula" });
    this.zoomed = el("span", { class: "zoomed", role: "status" });
    fill(place, el("div", {}), this.grid, this.notes);
    this.details = el("div", { popover: "auto", role: "dialog", "aria-label": "How this chart is made" });
    document.body.append(this.details);
    new ResizeObserver(() => this.plots.forEach((plot) => plot.resize())).observe(this.grid);
    addEventListener("themechange", () => this.plots.forEach((plot) => plot.draw()));
  }

  get url() {
    return runPath(this.id, "metrics", { points: POINTS, start: this.zoom?.[0], end: this.zoom?.[1] });
  }

  get command() {
    const range = this.zoom ? ` --start ${this.zoom[0].toFixed(1)} --end ${this.zoom[1].toFixed(1)}` : "";
    return `headrace metrics ${this.id}${range} --output json`;
  }

  /** Reads the metrics, and draws them. */
  async load() {
    this.asked?.abort();
    this.asked = new AbortController();
    try {
      this.draw(await get(this.url, this.asked.signal));
    } catch (error) {
      if (error.name !== "AbortError") fill(this.notes, `${error.message}. ${error.hint ?? ""}`);
    }
  }

  draw(found) {
    this.found = found;
    const scale = this.zoom ?? [found.start, Math.max(found.end, found.start + found.width)];
    this.place.firstElementChild.replaceWith(el("div", { class: "section-head" }, el("h2", { id: "charts-title" }, "Over time"),
      source(el("span", { class: "source" }), this.command, this.url), this.zoomed));
    const seen = new Set();
    for (const chart of found.charts) {
      seen.add(chart.name);
      let plot = this.plots.get(chart.name);
      if (!plot) {
        plot = new Plot(chart, this.options());
        this.plots.set(chart.name, plot);
        this.grid.append(plot.element);
      }
      plot.options.groups = groups();
      if (this.stepped.has(chart.name)) {
        const [steps, lines, range] = merged(chart.lines.filter((line) => line.steps).map((line) => ({ ...line, x: line.steps })));
        plot.take(steps, { ...chart, lines }, range, "step");
      } else {
        plot.take(found.t, chart, scale);
      }
    }
    for (const [name, plot] of this.plots) plot.element.hidden = !seen.has(name);
    fill(this.notes, `A point stands for ${duration(found.width)}; shaded: least to greatest in it. ${found.notes.map((note) => `No ${note}.`).join(" ").replaceAll("No no", "No")}`);
    if (this.zoom) {
      const reset = el("button", { type: "button" }, "whole run");
      reset.addEventListener("click", () => this.reset());
      fill(this.zoomed, `${moment(this.zoom[0])} UTC, ${duration(this.zoom[1] - this.zoom[0])} `, reset);
    } else {
      fill(this.zoomed);
    }
  }

  options() {
    return {
      groups: [],
      marks: () => [...document.querySelectorAll(".fault")].map((mark) => Number(mark.dataset.t)),
      onJump: (t) => this.jump(t, {}, this.found.width),
      onZoom: (start, end) => this.show(start, end),
      onReset: () => this.reset(),
      until: () => (this.found.until === null ? Infinity : this.found.until - this.found.width),
      info: (plot) => this.info(plot),
    };
  }

  info(plot) {
    const button = el("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", "aria-label": `How ${plot.chart.title} is computed` }, "how?");
    button.addEventListener("click", () => {
      const index = this.found.charts.findIndex((chart) => chart.name === plot.chart.name);
      fill(this.details, el("h3", {}, plot.chart.title), el("dl", {},
        el("dt", {}, "Formula"), el("dd", {}, plot.chart.formula),
        el("dt", {}, "Point"), el("dd", {}, `${duration(this.found.width)} each`),
        el("dt", {}, "Command"), el("dd", {}, el("code", {}, this.command)),
        el("dt", {}, "Field"), el("dd", {}, el("code", {}, `charts[${index}].lines[].values`))));
      this.details.showPopover();
    });
    if (!plot.chart.lines.some((line) => line.steps)) return button;
    const steps = el("button", { type: "button", class: "quiet", "aria-pressed": "false", "aria-label": `${plot.chart.title} by step` }, "by step");
    steps.addEventListener("click", () => {
      if (!this.stepped.delete(plot.chart.name)) this.stepped.add(plot.chart.name);
      steps.setAttribute("aria-pressed", String(this.stepped.has(plot.chart.name)));
      this.draw(this.found);
    });
    return el("span", {}, steps, " ", button);
  }

  show(start, end) {
    if (end - start < 2) return;
    this.zoom = [Math.max(0, start), end];
    say(`zoomed to ${duration(end - start)}`);
    this.load();
  }

  reset() {
    if (!this.zoom) return;
    this.zoom = null;
    say("the whole run");
    this.load();
  }
}
