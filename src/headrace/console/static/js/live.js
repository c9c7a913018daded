// Server-sent events, while the page is seen. A hidden page closes its connection, because a browser has only a few for
// one server, and asks again with the id that it saw last when it is seen.
import { by } from "./dom.js";

/** Follows an address.
 * @param {string} url - of server-sent events.
 * @param {(data: object, last: boolean) => void} heard - told of each change; `last`: nothing more will come.
 */
export function follow(url, heard) {
  const light = by("live");
  let stream = null;
  let over = false;
  const show = (state, words) => {
    light.dataset.state = state;
    light.textContent = words;
  };
  const open = () => {
    if (stream || over || document.hidden) return;
    stream = new EventSource(url);
    stream.onopen = () => show("on", "live");
    stream.onerror = () => show("off", "not connected");
    stream.addEventListener("change", (event) => heard(JSON.parse(event.data), false));
    stream.addEventListener("end", (event) => {
      over = true;
      close();
      show("ended", "ended");
      heard(JSON.parse(event.data), true);
    });
  };
  const close = () => {
    stream?.close();
    stream = null;
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
