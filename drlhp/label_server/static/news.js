// News of the run: by events while the page is in front, and else by asking now and then. A browser has six connections
// to a server, for all its tabs together, so of the pages that nobody sees only one keeps one open. It hears the last
// word of a run that ends: soon after that nobody can be asked.

import { Unreachable, call } from "./api.js";

const UNSEEN = "events for the pages that nobody sees"; // the lock of the one that has them
const POLL_MS = 2000, HIDDEN_POLL_MS = 5000, AGAIN_MS = 5000;

export class News {
  /** hooks: status(status) of any kind; event() after a status that came by itself; unreached(error). */
  constructor(hooks) {
    this.hooks = hooks;
    this.events = null;
    this.polling = null; // the timer while no events come
    this.unseen = null; // ends the wish for events of a page that nobody sees
    this.asking = null; // the request on its way
  }

  /** Begins, or begins anew when the page came to the front or left it. */
  follow() {
    this.unseen?.abort();
    this.events?.close();
    this.events = null;
    clearInterval(this.polling);
    this.polling = null;
    if (document.visibilityState === "visible") return this.listen();
    this.polling = setInterval(() => this.ask(), HIDDEN_POLL_MS);
    const { signal } = (this.unseen = new AbortController());
    const listening = () => new Promise((end) => { signal.addEventListener("abort", end); this.listen(); });
    // There are no locks on a page that is served over a network without HTTPS. The request ends with an error if aborted.
    navigator.locks?.request(UNSEEN, { signal }, listening).catch(() => {});
  }

  listen() {
    const events = (this.events = new EventSource("/api/events"));
    events.onmessage = (event) => {
      this.hooks.status(JSON.parse(event.data));
      this.hooks.event();
    };
    events.onopen = () => { clearInterval(this.polling); this.polling = null; };
    events.onerror = () => {
      this.hooks.unreached(null); // a server that is dead is noticed by this, long before a request is given up
      this.polling ??= setInterval(() => this.ask(), POLL_MS);
      this.ask(); // may say why
      if (this.events?.readyState === EventSource.CLOSED) setTimeout(() => this.follow(), AGAIN_MS);
    };
  }

  ask() {
    this.asking ??= call("GET", "/api/status").then((status) => this.hooks.status(status), this.hooks.unreached).finally(() => (this.asking = null));
  }
}
