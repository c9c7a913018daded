// Times as people read them, and arguments as a shell does.
const date = (seconds) => new Date(seconds * 1000).toISOString();

/** Returns "2026-11-20 19:01:02", UTC. */
export const moment = (seconds) => date(seconds).slice(0, 19).replace("T", " ");

/** Returns "19:01:02.123", UTC. */
export const clock = (seconds, digits = 3) => date(seconds).slice(11, 19 + (digits ? digits + 1 : 0));

/** Returns an argument as a POSIX shell reads it back. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
