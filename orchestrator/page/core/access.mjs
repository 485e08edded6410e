// The owner's token: pasted once, stored for this tab only, and sent only to the orchestrator's API.

const KEY = "muster-token";
const TOKEN = /^mst_[0-9a-f]{8}_[A-Za-z0-9_-]{43}$/;
export const SCOPES = ["read", "operate", "admin"];

/** Returns the token in a pasted text, without spaces and a leading `Bearer`; null if the text is no token. */
export function tokenIn(text) {
  const token = String(text)
    .trim()
    .replace(/^(authorization:\s*)?bearer\s+/i, "");
  return TOKEN.test(token) ? token : null;
}

const SESSION = /^mse_[A-Za-z0-9_-]{43}$/;
const LOGIN = /^#login=(mlc_[A-Za-z0-9_-]{43})$/;
export const SESSION_ACCESS = { key: "muster-session", read: (text) => (SESSION.test(text) ? text : null) };

/** Returns the one-time code in the fragment of a contributor's link; null if it has none. */
export function loginCodeOf(fragment) {
  return LOGIN.exec(fragment)?.[1] ?? null;
}

export const NO_TOKEN =
  "This is not a complete token. A token is mst_, eight hex digits, an underscore and 43 characters; `muster token new` creates one.";

/** Returns whether a token of scope `scope` allows actions that need `needed`. */
export function includes(scope, needed) {
  return SCOPES.indexOf(scope) >= SCOPES.indexOf(needed) && SCOPES.includes(needed);
}

/** Stores the token in the browser's storage for one tab. `read(text)` returns the token in a stored text, or null. */
export class Access {
  constructor(storage, { key = KEY, read = tokenIn } = {}) {
    Object.assign(this, { storage, key, read });
  }

  /** The token, or null. */
  get token() {
    try {
      return this.read(this.storage.getItem(this.key) ?? "");
    } catch {
      return null; // the browser's storage is disabled: the user has to paste the token again
    }
  }

  keep(token) {
    try {
      this.storage.setItem(this.key, token);
    } catch {
      // The browser's storage is disabled: the token is lost when the page is reloaded.
    }
  }

  forget() {
    try {
      this.storage.removeItem(this.key);
    } catch {
      // The browser's storage is disabled, so nothing was stored.
    }
  }
}
