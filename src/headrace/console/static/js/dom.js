// Making elements. Text goes in as text nodes only: nothing that a job writes is ever read as HTML.

/** Returns an element with attributes (`on...` are listeners, null and false are left out) and children. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "colour") made.style.setProperty("--colour", value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Replaces what is in an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return parent;
}

/** Returns the colour of the n-th group or line. */
export const colour = (index) => `var(--c${index % 8})`;

export const by = (id) => document.getElementById(id);

/** Says something to screen readers. */
export function say(text) {
  const spoken = by("spoken");
  if (spoken) spoken.textContent = text;
}

/** Returns a function that runs `work` at most once every so many milliseconds, and always once more after the last call. */
export function throttle(work, milliseconds) {
  let timer = null;
  let again = false;
  const run = () => {
    timer = setTimeout(() => {
      timer = null;
      if (again) {
        again = false;
        run();
      }
    }, milliseconds);
    work();
  };
  return () => {
    if (timer === null) run();
    else again = true;
  };
}

/** Repeats work while it is wanted and the page is seen, with so much rest that it has at most a fortieth of the time, and
 * at most 20 s. */
export function regularly(work, wanted, milliseconds) {
  const next = async () => {
    const began = performance.now();
    if (wanted() && !document.hidden) await work();
    setTimeout(next, Math.max(milliseconds, Math.min(20000, 40 * (performance.now() - began))));
  };
  setTimeout(next, milliseconds);
}
