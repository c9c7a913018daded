// Asking the server: JSON documents, each of which a command prints, too.

// The address that `headrace ui` prints holds the secret; a cookie has it from here on.
const address = new URL(location.href);
if (address.searchParams.has("token")) {
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}

/** An answer that says what is wrong. */
class Problem extends Error {
  constructor(message, hint = "", status = 0) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

/** Returns an address of the API with parameters; those that are null or empty are left out. */
export function path(base, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${base}?${text}` : base;
}

/** Returns the answer of an address. Throws a Problem. */
export async function ask(url, signal) {
  let response;
  try {
    response = await fetch(url, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("the server does not answer", "is `headrace ui` still running?");
  }
  if (response.status === 403) throw new Problem("not allowed", "open the address that `headrace ui` printed", 403);
  if (response.ok) return response;
  const found = await response.json();
  throw new Problem(found.error ?? `answer ${response.status}`, found.hint ?? "", response.status);
}

/** Returns the document at an address. Throws a Problem. */
export const get = async (url, signal) => (await ask(url, signal)).json();

export const run = (id, what = "", parameters = {}) => path(`/api/runs/${encodeURIComponent(id)}/${what}`, parameters);
