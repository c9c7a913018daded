// Numbers and times as people read them. It computes nothing that is not in the document shown.

const places = (value) => (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);

/** Returns [number, unit] of a value; "–" when it was not measured. */
export function parts(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return ["–", ""];
  if (unit.startsWith("bytes")) return bytes(value, unit.slice(5));
  if (unit === "s") return value >= 60 ? [duration(value), ""] : [value.toFixed(1), "s"];
  if (unit === "1") return [Number.isInteger(value) ? value.toLocaleString("en") : significant(value), ""];
  if (unit === "") return [general(value), ""]; // of a metric definition, as the program printed it
  if (unit === "1/s") return [significant(value), "/s"];
  return [value.toFixed(places(value)), unit];
}

/** Returns a value at an axis: short, its unit only where it changes with the size. */
export function tick(value, unit) {
  if (unit.startsWith("bytes")) return value === 0 ? "0" : parts(value, unit)[0].replace(/\.0+$/, "") + " " + parts(value, "bytes")[1];
  if (Math.abs(value) >= 10000) return Intl.NumberFormat("en", { notation: "compact" }).format(value);
  return String(Number(value.toPrecision(4)));
}

/** Returns a value with its unit. */
export function number(value, unit) {
  const [text, words] = parts(value, unit);
  return words ? `${text} ${words}` : text;
}

/** Returns a value with up to six digits that count, as the command line does (%g). */
function general(value) {
  const [digits, power] = Number(value.toPrecision(6)).toExponential().split("e");
  if (power >= -4 && power < 6) return String(Number(value.toPrecision(6)));
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

function significant(value) {
  if (value !== 0 && Math.abs(value) < 0.1) return value.toPrecision(2);
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(places(value / 1e6))} M`;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(places(value));
}

function bytes(value, per) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (Math.abs(value) >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return [index ? value.toFixed(places(value)) : value.toFixed(0), units[index] + per];
}

/** Returns a duration, as the command line does. */
export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const two = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60;
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const date = (seconds) => new Date(seconds * 1000).toISOString();

/** Returns "2026-11-20 19:01:02", UTC. */
export const moment = (seconds) => date(seconds).slice(0, 19).replace("T", " ");

/** Returns "19:01:02.123", UTC. */
export const clock = (seconds, digits = 3) => date(seconds).slice(11, 19 + (digits ? digits + 1 : 0));

/** Returns an argument as a POSIX shell reads it back. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
