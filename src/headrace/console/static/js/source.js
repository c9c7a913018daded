// Where what is shown comes from: the command that prints it, a button that copies it, and the JSON behind it.
import { el, fill, say } from "./dom.js";

/** Puts command and JSON link into an element. */
export function source(place, command, url) {
  const copy = el("button", { type: "button", class: "quiet", "aria-label": `Copy the command: ${command}` }, "copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      copy.textContent = "copied";
      say("copied");
    } catch {
      copy.textContent = "select it by hand";
    }
    setTimeout(() => (copy.textContent = "copy"), 1500);
  });
  return fill(place, el("code", {}, command), copy, el("a", { href: url, target: "_blank", rel: "noopener" }, "JSON"));
}

/** Returns a heading of a section with its source. */
export function heading(id, words, command, url, ...more) {
  const place = el("span", { class: "source" });
  if (command) source(place, command, url);
  return el("div", { class: "section-head" }, el("h2", { id }, words), command ? place : null, ...more);
}
