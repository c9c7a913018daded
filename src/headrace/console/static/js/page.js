// What all pages do: parts that the server makes anew, what is known of a figure, and commands to copy. A part's text was
// escaped where it was made.
import { by, el, fill, say } from "./dom.js";
import { ask } from "./api.js";

/** Puts elements where the server could not: the page's policy allows no style in a tag. */
function place(root) {
  for (const one of root.querySelectorAll("[data-left]:not(figure)")) one.style.left = `${one.dataset.left}%`;
  for (const one of root.querySelectorAll("[data-width]:not(section)")) one.style.width = `${one.dataset.width}%`;
}

/** Returns what an answer in HTML holds. Throws a Problem. */
export async function fragment(url) {
  const made = new DOMParser().parseFromString(await (await ask(url)).text(), "text/html");
  place(made);
  return made;
}

/** Puts each element of an answer in the place of the one with its id, but where it is the same and where a reader has
 * something open.
 * @param {() => boolean} wanted - whether the answer is still wanted when it comes. */
export async function part(url, wanted = () => true) {
  const found = [...(await fragment(url)).body.children];
  for (const made of wanted() ? found : []) {
    const old = by(made.id);
    if (!old || old.isEqualNode(made) || old.querySelector(":popover-open") || old.contains(document.activeElement?.closest("select"))) continue;
    const again = same(document.activeElement, old, made);
    old.replaceWith(made);
    again?.focus();
  }
}

/** Returns the element of a new part that stands for one of the old: a link to the same place, else the one at its number,
 * in the same chart if it is in one. */
function same(element, old, made) {
  if (!element || !old.contains(element)) return null;
  const chart = element.closest("[data-chart]")?.dataset.chart;
  const all = (root) => [...root.querySelectorAll(`${chart ? `[data-chart="${CSS.escape(chart)}"] ` : ""}${element.localName}`)];
  return all(made).find((other) => other.href && other.href === element.href) ?? all(made)[all(old).indexOf(element)];
}

/** Shows what is wrong. */
export function trouble(error, place = by("trouble")) {
  fill(place, el("div", { class: "notice" }, el("b", {}, error.message), error.hint ? el("div", {}, error.hint) : null));
}

/** Puts command and JSON link into an element. */
export function source(place, command, url) {
  return fill(place, el("code", {}, command),
    el("button", { type: "button", class: "quiet", "data-copy": command, "aria-label": `Copy the command: ${command}` }, "copy"),
    el("a", { href: url, target: "_blank", rel: "noopener" }, "JSON"));
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
    say("copied");
  } catch {
    button.textContent = "select it by hand";
  }
  setTimeout(() => (button.textContent = "copy"), 1500);
}

/** Opens what is known of a figure beside its button. */
function open(button) {
  const shown = button.nextElementSibling;
  const box = button.getBoundingClientRect();
  Object.assign(shown.style, { position: "fixed", inset: "auto", margin: "0" });
  shown.showPopover();
  const size = shown.getBoundingClientRect();
  const top = box.bottom + 6 + size.height > innerHeight ? Math.max(6, box.top - size.height - 6) : box.bottom + 6;
  shown.style.top = `${top}px`;
  shown.style.left = `${Math.max(6, Math.min(box.left, innerWidth - size.width - 6))}px`;
}

addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy], button[data-field]");
  if (button?.dataset.copy) copy(button);
  else if (button) open(button);
});
