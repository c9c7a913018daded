// One chart: uPlot on a canvas, a legend of buttons, and keys. The time axis is UTC, as in the logs.
import { el, fill, say } from "./dom.js";
import { clock, duration, number, tick } from "./format.js";

const uPlot = globalThis.uPlot; // vendored, a classic script
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const POWERS = Array.from({ length: 60 }, (_, index) => 2 ** index); // bytes are told in KiB, MiB, GiB
const CLICK = 4; // pixels a pointer may move in a click

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const resolved = (colour) => css(colour.slice(4, -1));

/** Chooses colour and dash of each line: a group has its colour everywhere; lines of one group differ by dashes. */
function looks(lines, groups) {
  const used = new Map();
  let free = groups.length;
  return lines.map((line) => {
    const index = groups.indexOf(line.group);
    if (index < 0) {
      free += 1;
      return { colour: `var(--c${(free - 1) % 8})`, dash: [] };
    }
    const count = used.get(index) ?? 0;
    used.set(index, count + 1);
    return { colour: `var(--c${index % 8})`, dash: DASHES[count % DASHES.length] };
  });
}

/** Widens a colour to a transparent one. */
const faint = (colour, share = 20) => `color-mix(in srgb, ${colour} ${share}%, transparent)`;

/** What a place on the horizontal axis is called: a moment, seconds since the start, or a step. */
const AXES = { time: (at) => clock(at, 0), since: duration, step: (at) => number(at, "") };

/** Returns lines that have places of their own on one common axis: its places, the lines, and what the axis shows.
 * @param {{x: number[], values: number[], name: string, group: string}[]} curves
 */
export function merged(curves) {
  const known = curves.map(({ x, values }) => new Map(x.map((at, index) => [at, values[index]]).filter(([at, value]) => at !== null && value !== null)));
  const all = [...new Set(known.flatMap((one) => [...one.keys()]))].sort((a, b) => a - b);
  const lines = curves.map(({ name, group }, index) => ({ name, group, values: all.map((at) => known[index].get(at) ?? null) }));
  return [all, lines, [all[0] ?? 0, Math.max(all.at(-1) ?? 1, (all[0] ?? 0) + 1)]];
}

/** One chart.
 * @param {object} chart - of the document of `headrace metrics`.
 * @param {object} options - groups: names in order; marks: times of faults; onJump(t), onZoom(start, end), onReset();
 *   until(): the last moment of which a value counts as the last one, if it is not the end.
 */
export class Plot {
  constructor(chart, options) {
    this.options = options;
    this.chart = chart;
    this.hidden = new Set();
    this.area = el("div", {
      class: "plot", tabindex: "0", role: "img",
      "aria-label": `${chart.title} over time. Left and right arrows move along it, Enter shows the log lines of that moment, plus and minus zoom.`,
    });
    this.legend = el("div", { class: "legend" });
    this.element = el("figure", { class: "chart card", "data-chart": chart.name },
      el("header", {}, el("h3", {}, `${chart.title} `, chart.unit === "1" ? "" : el("span", { class: "unit" }, unitWords(chart.unit))), options.info(this)),
      this.legend, this.area);
    this.element.style.margin = "0";
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.area.addEventListener("dblclick", () => options.onReset());
  }

  /** Takes new data; lines that come or go are drawn anew. */
  take(times, chart, scale, axis = "time") {
    this.axis = axis;
    const shape = JSON.stringify([axis, chart.lines.map((line) => [line.name, line.group, Boolean(line.low)]), this.options.groups]);
    this.chart = chart;
    this.times = times;
    this.scale = scale;
    if (shape === this.shape && this.plot) {
      this.plot.setData(this.data());
    } else {
      this.shape = shape;
      this.draw();
    }
    this.names(null);
  }

  data() {
    let below = null;
    const columns = this.chart.lines.flatMap((line) => {
      if (!this.chart.stacked || this.hidden.has(line.name)) return [line.values, ...(line.low ? [line.low, line.high] : [])];
      const under = below;
      below = line.values.map((value, at) => (value === null ? under?.[at] ?? null : value + (under?.[at] ?? 0)));
      return [below];
    });
    return [this.times, ...columns];
  }

  /** Draws it anew: in another size, or in other colours. */
  draw() {
    if (!this.area.isConnected || !this.area.clientWidth) return;
    this.plot?.destroy();
    this.styles = looks(this.chart.lines, this.options.groups);
    const series = [{}];
    const bands = [];
    this.chart.lines.forEach((line, index) => {
      const { colour, dash } = this.styles[index];
      const stroke = resolved(colour);
      const show = !this.hidden.has(line.name);
      const fill = this.chart.stacked ? faint(stroke, 45) : undefined;
      const under = this.chart.lines.findLastIndex((other, at) => at < index && !this.hidden.has(other.name));
      if (fill && under >= 0) bands.push({ series: [index + 1, under + 1], fill });
      series.push({ label: line.name, stroke, dash, fill, width: 1.6, show, spanGaps: this.axis !== "time", points: { show: (u, at) => alone(u.data[at]) , size: 4 } });
      if (line.low) {
        const edge = { show, stroke: "transparent", width: 0, points: { show: false } };
        bands.push({ series: [series.length + 1, series.length], fill: faint(stroke), dir: -1 });
        series.push({ ...edge, label: "low" }, { ...edge, label: "high" });
      }
    });
    const ink = css("--soft");
    const grid = { stroke: css("--rule-soft"), width: 1 };
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.area.clientWidth,
      height: this.area.clientHeight,
      legend: { show: false },
      padding: [8, 6, 0, 0],
      tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "Etc/UTC"),
      fmtDate: (template) => uPlot.fmtDate(template.replace(/{h}(:{mm})?(:{ss})?{aa}/, (_, m, s) => `{HH}${m ?? ":{mm}"}${s ?? ""}`)),
      scales: {
        x: { time: this.axis === "time", range: () => this.scale },
        y: { range: (u, low, high) => yRange(this.chart, this.hidden) },
      },
      series,
      bands,
      axes: [
        { ...axis, size: 26, space: 70, values: (u, ticks, at, space, step) => ticks.map((t) => (this.axis === "time" ? clock(t, 0).slice(0, step < 60 ? 8 : 5) : AXES[this.axis](t))) },
        { ...axis, size: this.chart.unit.startsWith("bytes") ? 62 : 46, space: 28, ...(this.chart.unit.startsWith("bytes") ? { incrs: POWERS } : {}), values: (u, ticks) => ticks.map((value) => tick(value, this.chart.unit)) },
      ],
      cursor: { y: false, ...(this.axis === "time" ? { sync: { key: "run", setSeries: false } } : {}), drag: { x: true, y: false, setScale: false }, focus: { prox: -1 }, points: { size: 6 } },
      hooks: {
        setCursor: [(u) => this.names(u.cursor.idx)],
        setSelect: [(u) => this.selected(u)],
        draw: [(u) => this.marks(u)],
      },
    }, this.data(), this.area);
    this.clicks();
  }

  clicks() {
    let down = null;
    this.plot.over.addEventListener("pointerdown", (event) => (down = event.clientX));
    this.plot.over.addEventListener("click", (event) => {
      if (down !== null && Math.abs(event.clientX - down) < CLICK) this.jump();
      down = null;
    });
  }

  /** Shows the log lines of the moment under the cursor. */
  jump() {
    const at = this.plot.cursor.idx;
    if (at !== null && at !== undefined && this.axis === "time") this.options.onJump(this.times[at]);
  }

  selected(u) {
    if (u.select.width > CLICK) {
      const [start, end] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.options.onZoom(start, end);
    }
  }

  key(event) {
    if (!this.plot) return;
    const last = this.times.length - 1;
    const at = this.plot.cursor.idx ?? -1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -last, End: last };
    const [start, end] = this.scale;
    if (event.key in steps) {
      const next = Math.max(0, Math.min(last, at + steps[event.key]));
      this.plot.setCursor({ left: this.plot.valToPos(this.times[next], "x"), top: this.plot.over.clientHeight / 2 });
      say(`${AXES[this.axis](this.times[next])}: ${this.chart.lines.map((line) => `${line.name} ${number(line.values[next], this.chart.unit)}`).join(", ")}`);
    } else if (event.key === "Enter") {
      this.jump();
    } else if (event.key === "+") {
      const middle = at >= 0 ? this.times[at] : (start + end) / 2;
      this.options.onZoom(Math.max(start, middle - (end - start) / 4), Math.min(end, middle + (end - start) / 4));
    } else if (event.key === "-" || event.key === "Escape") {
      this.options.onReset();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Fills the legend: a button a line, with its value at the cursor, else the last one. */
  names(at) {
    const lines = this.chart.lines;
    if (this.legend.childElementCount !== lines.length || this.legend.dataset.shape !== this.shape) {
      this.legend.dataset.shape = this.shape;
      const styles = this.styles ?? looks(lines, this.options.groups);
      fill(this.legend, lines.map((line, index) => this.entry(line, styles[index])));
    }
    lines.forEach((line, index) => {
      const value = at === null || at === undefined ? this.last(line) : line.values[at];
      this.legend.children[index].querySelector("b").textContent = number(value, this.chart.unit);
    });
  }

  /** Returns the last value of a line, of the training and not of the shutdown. */
  last(line) {
    const until = this.axis === "time" ? this.options.until?.() ?? Infinity : Infinity;
    return line.values.findLast((one, at) => one !== null && this.times[at] <= until) ?? line.values.findLast((one) => one !== null);
  }

  entry(line, style) {
    const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of Object.entries({ x1: 0, y1: 4, x2: 20, y2: 4, "stroke-width": 2.5, "stroke-dasharray": style.dash.join(" ") })) stroke.setAttribute(name, value);
    stroke.style.stroke = style.colour;
    swatch.setAttribute("aria-hidden", "true");
    swatch.append(stroke);
    const button = el("button", { type: "button", "aria-pressed": String(!this.hidden.has(line.name)), title: "Show or hide this line" }, swatch, line.name, el("b"));
    button.addEventListener("click", () => {
      if (this.hidden.has(line.name)) this.hidden.delete(line.name);
      else this.hidden.add(line.name);
      button.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
      this.draw();
    });
    return button;
  }

  /** Draws when something went wrong. */
  marks(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = css("--bad");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const t of this.options.marks()) {
      if (t < this.scale[0] || t > this.scale[1]) continue;
      const x = Math.round(u.valToPos(t, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  resize() {
    if (this.plot && this.area.clientWidth) this.plot.setSize({ width: this.area.clientWidth, height: this.area.clientHeight });
    else this.draw();
  }
}

/** Returns whether a value has no neighbour: it needs a point to be seen. */
function alone(values) {
  return values.filter((value) => value !== null).length <= 2;
}

const unitWords = (unit) => ({ "1/s": "a second", bytes: "" })[unit] ?? unit;

/** From 0 to what is shown; shares go to 100. The edges of a range may leave the picture, the lines do not. */
function yRange(chart, hidden) {
  let top = 0;
  let bottom = 0;
  for (const line of chart.lines) {
    if (hidden.has(line.name)) continue;
    for (const value of line.values) {
      if (value > top) top = value;
      if (value < bottom) bottom = value;
    }
    if (chart.unit !== "%") for (const value of line.high ?? []) if (value > top) top = value;
  }
  if (chart.unit === "%") return [0, Math.max(100, top)];
  return [bottom, top > bottom ? top * 1.06 : bottom + 1];
}
