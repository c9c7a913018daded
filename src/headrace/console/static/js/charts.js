// Charts that the server draws: one cursor for all over time, zoom by dragging or keys, lines to hide.
import { el, fill, say } from "./dom.js";
import { part } from "./page.js";

const CLICK = 4; // units of the drawing a pointer may move in a click
const read = (area, name) => JSON.parse(area.dataset[name]);

/** Returns where in a drawing a pointer is. */
function across(area, event) {
  const svg = area.querySelector("svg");
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
}

const nearest = (places, at) => places.reduce((best, place, index) => (Math.abs(place - at) < Math.abs(places[best] - at) ? index : best), 0);

export class Charts {
  /** @param {() => HTMLElement} place - of the charts. @param {(zoom: number[] | null, steps: string[]) => string} url - of them.
   * @param {(t: number, place: object, width: number) => void} jump - shows the log lines of a moment. */
  constructor(place, url, jump = () => {}) {
    Object.assign(this, { place, url, jump, zoom: null, steps: new Set(), hidden: new Set(), at: null, serial: 0 });
    this.on("pointermove", ".plot", (area, event) => this.moved(area, event));
    this.on("pointerdown", ".plot", (area, event) => Object.assign(this, { from: across(area, event), dragged: area }));
    this.on("pointerup", ".plot", (area, event) => this.up(area, event));
    this.on("pointerout", ".plot", (area, event) => area.contains(event.relatedTarget) || this.cursor(area, null));
    this.on("dblclick", ".plot", () => this.show(null));
    this.on("keydown", ".plot", (area, event) => this.key(area, event));
    this.on("click", ".legend button", (button) => this.toggle(button));
    this.on("click", "[data-whole]", () => this.show(null));
    this.on("click", "[data-how]", (button) => button.nextElementSibling.showPopover());
    this.on("click", "[data-step]", (button) => {
      if (!this.steps.delete(button.dataset.step)) this.steps.add(button.dataset.step);
      this.load();
    });
  }

  on(kind, selector, act) {
    addEventListener(kind, (event) => {
      const target = event.target.closest?.(selector);
      if (target && this.place().contains(target)) act(target, event);
    });
  }

  /** Asks for the charts as they are to be shown; what a reader has hidden or chosen stays. */
  async load() {
    this.serial += 1;
    const mine = this.serial;
    try {
      await part(this.url(this.zoom, [...this.steps]), () => mine === this.serial);
    } catch (error) {
      fill(this.place(), el("div", { class: "notice" }, `${error.message}. ${error.hint ?? ""}`));
    }
    if (mine !== this.serial) return;
    for (const button of this.place().querySelectorAll(".legend button")) if (this.hidden.has(this.key_of(button))) this.pressed(button, false);
  }

  show(zoom) {
    if (zoom ? zoom[1] - zoom[0] < 2 : !this.zoom) return;
    this.zoom = zoom;
    say(zoom ? "zoomed" : "the whole run");
    this.load();
  }

  /** Moves the cursor of a chart, and of all over the same time, to the n-th place; null takes it away. */
  cursor(area, index) {
    const figure = area.closest("figure");
    this.at = index;
    for (const other of figure.dataset.axis === "time" ? this.place().querySelectorAll("[data-axis=time] .plot") : [area]) {
      const x = index === null ? null : read(other, "x")[index];
      other.querySelector(".cursor").setAttribute("d", x === null || x === undefined ? "" : `M${x} 12V206`);
      for (const button of other.closest("figure").querySelectorAll(".legend button")) {
        const value = button.querySelector("b");
        value.textContent = index === null ? value.dataset.last : read(button, "words")[index];
      }
    }
  }

  moved(area, event) {
    const x = across(area, event);
    this.cursor(area, nearest(read(area, "x"), x));
    if (this.dragged !== area) return;
    const drag = area.querySelector(".drag");
    drag.setAttribute("x", Math.min(x, this.from));
    drag.setAttribute("width", Math.abs(x - this.from));
  }

  up(area, event) {
    const [from, to] = [this.from, across(area, event)].sort((a, b) => a - b);
    const mine = this.dragged === area;
    this.dragged = null;
    area.querySelector(".drag").setAttribute("width", 0);
    if (!mine) return;
    if (to - from < CLICK) this.choose(area, nearest(read(area, "x"), to));
    else this.show([this.value(area, from), this.value(area, to)]);
  }

  /** Returns what lies at a place of the drawing. */
  value(area, x) {
    const over = area.querySelector(".over");
    const { left, right } = area.closest("figure").dataset;
    return Number(left) + ((x - over.getAttribute("x")) / over.getAttribute("width")) * (right - left);
  }

  choose(area, index) {
    if (area.closest("figure").dataset.axis === "time" && index !== null) this.jump(read(area, "places")[index], {}, Number(this.place().dataset.width));
  }

  key(area, event) {
    const last = read(area, "places").length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -last, End: last };
    const [left, right] = [Number(area.closest("figure").dataset.left), Number(area.closest("figure").dataset.right)];
    if (event.key in steps) {
      const next = Math.max(0, Math.min(last, (this.at ?? -1) + steps[event.key]));
      this.cursor(area, next);
      say(`${read(area, "names")[next]}: ${[...area.closest("figure").querySelectorAll(".legend button")].map((button) => button.textContent).join(", ")}`);
    } else if (event.key === "Enter") {
      this.choose(area, this.at);
    } else if (event.key === "+") {
      const middle = this.at === null ? (left + right) / 2 : read(area, "places")[this.at];
      this.show([Math.max(left, middle - (right - left) / 4), Math.min(right, middle + (right - left) / 4)]);
    } else if (event.key === "-" || event.key === "Escape") {
      this.show(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  key_of(button) {
    return `${button.closest("figure").dataset.chart} ${[...button.parentElement.children].indexOf(button)}`;
  }

  toggle(button) {
    const key = this.key_of(button);
    if (!this.hidden.delete(key)) this.hidden.add(key);
    this.pressed(button, !this.hidden.has(key));
  }

  pressed(button, on) {
    button.setAttribute("aria-pressed", String(on));
    const index = [...button.parentElement.children].indexOf(button);
    button.closest("figure").querySelectorAll(".plot g")[index].classList.toggle("hidden", !on);
  }
}
