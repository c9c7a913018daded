// Numbers and times as people read them. It computes nothing that is not in the document shown.

const TITLES = {
  time_to_train: "Time to train", step_time: "Step time", samples_per_second: "Samples/s", data_wait: "Data wait",
  cpu: "CPU of its own cores", cpu_per_1000_samples: "CPU per 1,000 samples", max_rss: "Max RSS", h2d: "Host to device", compute: "Compute", queue: "Queue depth",
  supply: "Supply an executor", produce: "Produce", blocked: "Blocked", idle: "Idle", bytes_per_sample: "Bytes a sample",
  link: "Link busy", gpu_use: "GPU", gpu_memory: "GPU memory", gpu_power: "GPU power",
  worker_cpu: "CPU of 1,000 samples", server_cpu: "CPU of one core", server_rss: "Max RSS", server_sent: "Sent to trainers",
  value_count: "Found", value_last: "Last", value_min: "Least", value_max: "Greatest", value_mean: "Mean",
  billable_seconds: "Billable", cost: "Cost", cost_per_hour: "Cost an hour", cost_per_step: "Cost a step",
  cost_per_epoch: "Cost an epoch", cost_per_1000_samples: "Cost of 1,000 samples", cost_platform: "Platform's bill",
};

/** Returns the title of a figure. */
export function title(name) {
  const words = TITLES[name] ?? name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const places = (value) => (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);

/** Returns [number, unit] of a value; "–" when it was not measured. */
export function parts(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return ["–", ""];
  if (unit.startsWith("bytes")) return bytes(value, unit.slice(5));
  if (unit.startsWith("USD")) return [amount(value), unit];
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

/** Returns an amount with two decimals, or more while fewer than three digits count: the words of the command line,
 * `headrace.insight.cost.billing.amount`, which rounds halves to even. */
export function amount(value) {
  const places = value === 0 ? 2 : Math.min(100, Math.max(2, 2 - Number(value.toExponential().split("e")[1])));
  const exact = value.toFixed(100); // a double that is a half at that place has no further digits
  const kept = exact.slice(0, exact.indexOf(".") + 1 + places);
  const even = /^50*$/.test(exact.slice(kept.length)) && Number(kept.at(-1)) % 2 === 0;
  return even ? kept : value.toFixed(places);
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

/** Returns how long ago a time was, roughly. */
export function ago(seconds, now) {
  const passed = Math.max(0, now - seconds);
  if (passed < 90) return "just now";
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return `${Math.round(passed / 86400)} d ago`;
}

/** Returns an argument as a POSIX shell reads it back. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
