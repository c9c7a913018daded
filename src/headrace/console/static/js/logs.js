// The log of a run: pages of lines, asked for as one scrolls, filtered by group, host, rank and words. Never the whole.
import { get, run as runPath } from "./api.js";
import { colour, el, fill, say, throttle } from "./dom.js";
import { clock, moment, quoted } from "./format.js";
import { source } from "./page.js";

const PAGE = 200;
const BACK = 40; // lines before the moment that was jumped to
const KEPT = 1500; // lines on the page; those at the other end go
const SEARCHES = 25; // pages without a line that are asked for in one go

export class Logs {
  /** @param {HTMLElement} place - the pane. @param {string} id - run. */
  constructor(place, id) {
    this.id = id;
    this.groups = [];
    this.before = this.after = null;
    this.busy = false;
    this.stale = false; // the logs have grown since a page was asked for that has not come yet
    this.top = 0;
    const select = (name, words) => el("select", { name, "aria-label": words, onchange: () => this.restart() }, el("option", { value: "" }, words));
    this.selects = { group: select("group", "All groups"), host: select("host", "All hosts"), stream: select("stream", "All programs") };
    this.words = el("input", { type: "search", placeholder: "Search in the lines", "aria-label": "Search in the lines", autocomplete: "off" });
    this.follows = el("input", { type: "checkbox" });
    this.source = el("span", { class: "source" });
    this.lines = el("div", { class: "log-lines", tabindex: "0", role: "region", "aria-label": "Log lines" });
    this.note = el("div", { class: "log-note", role: "status" });
    const first = el("button", { type: "button", onclick: () => this.restart(0) }, "Start");
    const last = el("button", { type: "button", onclick: () => this.restart() }, "End");
    fill(place, el("div", { class: "log-pane card" },
      el("div", { class: "section-head" }, el("h2", { id: "logs-title" }, "Log"), this.source),
      el("form", { class: "log-tools", onsubmit: (event) => event.preventDefault() },
        Object.values(this.selects), this.words,
        el("div", { class: "row" }, first, last, el("label", { class: "tick" }, this.follows, "follow"))),
      this.lines, this.note));
    this.words.addEventListener("input", throttle(() => this.restart(), 300));
    this.follows.addEventListener("change", () => this.follows.checked && this.restart());
    this.lines.addEventListener("scroll", () => this.scrolled());
  }

  get wishes() {
    const wishes = { limit: PAGE, text: this.words.value };
    for (const [name, field] of Object.entries(this.selects)) wishes[name] = field.value;
    return wishes;
  }

  get command() {
    const { group, host, stream, text } = this.wishes;
    // The command's selector goes from group to host to rank; what is wanted of every group cannot be said with it.
    const place = group ? [group, host, host && stream].filter(Boolean).map(encodeURIComponent).join("/") : "";
    const grep = text ? ` --grep ${quoted(`(?i)${text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}`)}` : "";
    const since = this.t ? ` --since ${new Date(this.t * 1000).toISOString().slice(0, 19)}Z` : "";
    return `headrace logs ${quoted(place ? `${this.id}/${place}` : this.id)}${grep}${since} --output json`;
  }

  /** Shows the last lines, or those from a moment on. */
  async restart(t = null, back = 0, hit = null) {
    this.t = t;
    this.busy = this.stale = false;
    this.serial = (this.serial ?? 0) + 1;
    this.before = this.after = null;
    this.hit = hit;
    const parameters = { ...this.wishes, t, back: back || null };
    source(this.source, this.command, runPath(this.id, "logs", parameters));
    await this.ask(parameters, (page) => {
      fill(this.lines);
      this.put(page, false);
      if (t === null) this.lines.scrollTop = this.lines.scrollHeight;
      else this.reveal();
    }, t === null ? "before" : "after");
  }

  /** Shows the lines around a moment and marks those of its second. */
  async jump(moment, place = {}, width = 1) {
    const t = Math.floor(moment);
    this.follows.checked = false;
    if (place.host && this.selects.host.value && this.selects.host.value !== place.host) this.selects.host.value = "";
    await this.restart(t, BACK, [t, t + Math.max(1, width)]);
    const next = this.lines.querySelector("[data-after]");
    if (next && !this.lines.querySelector(".hit")) {
      next.classList.add("hit");
      this.note.textContent = "no line at that moment; marked is the next one";
    }
    const box = this.lines.getBoundingClientRect();
    if (box.top > innerHeight - 80 || box.bottom < 80) this.lines.scrollIntoView({ block: "center" });
    say(`log lines from ${clock(t, 0)}`);
  }

  reveal() {
    const first = this.lines.querySelector(".hit") ?? this.lines.querySelector("[data-after]");
    if (!first) return;
    this.lines.scrollTop += first.getBoundingClientRect().top - this.lines.getBoundingClientRect().top - 60;
  }

  /** Asks for a page; a search that finds nothing in what is read at once goes on. */
  async ask(parameters, put, way) {
    const serial = this.serial;
    this.busy = true;
    try {
      for (let count = 0; count < SEARCHES; count += 1) {
        const page = await get(runPath(this.id, "logs", parameters));
        if (serial !== this.serial) return;
        this.streams(page.streams);
        const done = way === "after" ? page.last : page.first;
        if (page.lines.length || done || count === SEARCHES - 1) {
          put(page);
          this.say(page, done);
          return;
        }
        this.note.textContent = "searching …";
        const { t, back, after, before, ...wishes } = parameters;
        parameters = { ...wishes, [way]: JSON.stringify(page[way]) };
      }
    } catch (error) {
      if (serial === this.serial) this.note.textContent = `${error.message}. ${error.hint ?? ""}`;
    } finally {
      if (serial === this.serial) {
        this.busy = false;
        if (this.stale) this.grown();
      }
    }
  }

  say(page, done) {
    const none = this.lines.querySelector(".log-line") === null;
    const damaged = page.damage.join("; ");
    this.note.textContent = damaged || (none ? (done ? "no such line" : "nothing found so far; search on with Older or Newer") : "");
  }

  put(page, front) {
    const height = this.lines.scrollHeight;
    const made = page.lines.map((line) => this.line(line));
    this.lines.querySelectorAll(".log-more").forEach((button) => button.remove());
    if (front) this.lines.prepend(...made);
    else this.lines.append(...made);
    if (front || this.before === null) [this.before, this.first] = [page.before, page.first];
    if (!front) [this.after, this.last] = [page.after, page.last];
    const rows = this.lines.children;
    while (rows.length > KEPT) {
      const gone = front ? rows[rows.length - 1] : rows[0];
      // The page goes on there from the line that is removed.
      const key = `${gone.record.group}/${gone.record.host}[${gone.record.stream}]`;
      if (front) [this.after[key], this.last] = [gone.record.at, false];
      else [this.before[key], this.first] = [gone.record.at + gone.record.size, false];
      gone.remove();
    }
    this.edges();
    if (front) this.lines.scrollTop += this.lines.scrollHeight - height;
  }

  /** Puts buttons where lines are left out. */
  edges() {
    this.lines.querySelectorAll(".log-more").forEach((button) => button.remove());
    const more = (words, ask) => el("button", { type: "button", class: "log-more", onclick: ask }, words);
    if (!this.first) this.lines.prepend(more("Older lines", () => this.older()));
    if (!this.last) this.lines.append(more("Newer lines", () => this.newer()));
  }

  older() {
    if (this.busy || this.first || !this.before) return;
    this.ask({ ...this.wishes, before: JSON.stringify(this.before) }, (page) => this.put(page, true), "before");
  }

  newer() {
    if (this.busy || !this.after) return;
    const end = this.follows.checked;
    this.ask({ ...this.wishes, after: JSON.stringify(this.after) }, (page) => {
      if (page.lines.length || !page.last || !this.last) this.put(page, false);
      if (end) this.lines.scrollTop = this.lines.scrollHeight;
    }, "after");
  }

  /** The logs have grown. A page on its way may have been read before that: what is new is asked for after it. */
  grown() {
    this.stale = this.busy;
    if (this.busy || this.after === null) return;
    this.last = false;
    if (this.follows.checked) this.newer();
    else this.edges();
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.lines;
    if (scrollTop < this.top - 2 && scrollHeight - scrollTop - clientHeight > 200) this.follows.checked = false; // to read
    this.top = scrollTop;
    if (scrollTop < 80) this.older();
    else if (scrollHeight - scrollTop - clientHeight < 80 && !this.last) this.newer();
  }

  line(record) {
    const index = this.groups.indexOf(record.group);
    const hit = this.hit && record.t !== null && record.t >= this.hit[0] && record.t < this.hit[1];
    const who = `${record.host}[${record.stream}]`;
    const made = el("div", {
      class: hit ? "log-line hit" : "log-line", "data-kind": record.kind, colour: colour(Math.max(0, index)),
      "data-after": this.t !== null && record.t >= this.t, title: record.t === null ? "not a log line: the file is damaged here" : `${moment(record.t)} UTC ${record.group}/${who}`,
    },
    el("span", { class: "when" }, record.t === null ? "damaged" : clock(record.t)),
    el("span", { class: "what" }, el("span", { class: "who" }, `${who} `), this.marked(record.text), record.cut ? el("span", { class: "who" }, ` … ${record.cut.toLocaleString("en")} more bytes`) : null));
    made.record = record;
    return made;
  }

  /** Returns a text with the words searched for marked. */
  marked(text) {
    const words = this.words.value.toLowerCase();
    if (!words) return [text];
    const found = [];
    let from = 0;
    for (let at = text.toLowerCase().indexOf(words); at >= 0; at = text.toLowerCase().indexOf(words, from)) {
      found.push(text.slice(from, at), el("mark", {}, text.slice(at, at + words.length)));
      from = at + words.length;
    }
    return [...found, text.slice(from)];
  }

  /** Fills the choices with the streams that there are. */
  streams(streams) {
    const names = { group: new Set(), host: new Set(), stream: new Set() };
    const { group, host } = this.wishes;
    for (const one of streams) {
      names.group.add(one.group);
      if (!group || one.group === group) names.host.add(one.host);
      if ((!group || one.group === group) && (!host || one.host === host)) names.stream.add(one.name);
    }
    for (const [name, field] of Object.entries(this.selects)) {
      const wanted = [...names[name]];
      if (field.value && !names[name].has(field.value)) wanted.push(field.value);
      const key = wanted.join("\n");
      if (field.dataset.key === key) continue;
      field.dataset.key = key;
      const value = field.value;
      fill(field, field.options[0], wanted.map((one) => el("option", { value: one }, name === "stream" && /^\d+$/.test(one) ? `rank ${one}` : one)));
      field.value = value;
    }
  }
}
