// News of the run: by events while the page is in front, and else by asking now and then. A browser has six connections
// to a server, for all its tabs together, so a page that nobody sees keeps none open.

import { Unreachable, call } from "./api.js";

const POLL_MS = 2000, HIDDEN_POLL_MS = 5000, AGAIN_MS = 5000;

export class News {
  /** hooks: status(status) of any kind; event() after a status that came by itself; unreached(error). */
  constructor(hooks) {
    this.hooks = hooks;
    this.events = null;
    this.polling = null; // the timer while no events come
    this.asking = null; // the request on its way
  }

  /** Begins, or begins anew when the page came to the front or left it. */
  follow() {
    this.events?.close();
    this.events = null;
    clearInterval(this.polling);
    this.polling = null;
    if (document.visibilityState !== "visible") {
      this.polling = setInterval(() => this.ask(), HIDDEN_POLL_MS);
      return;
    }
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
