// Several tabs of one labeller have the same pairs: each tells the others what was answered, and says every few
// seconds that it is there, so that only the last one to close gives the pairs back. A browser has one cookie: a tab
// that begins by another name takes it from all others, which must take that name too.

import { randomId, store } from "./api.js";

const HERE_MS = 4000; // a tab that has not said so for three times this is gone

export class Tabs {
  /** heard(news) of a tab of the same labeller; renamed(): another has begun. */
  constructor(me, { heard, renamed }) {
    this.labeller = me.labeller;
    this.prefix = `tab/${me.run}/${me.labeller}/`;
    this.key = this.prefix + randomId();
    this.channel = new BroadcastChannel(`labels/${me.run}`);
    this.channel.onmessage = ({ data: { labeller, begun, ...news } }) => {
      if (labeller === me.labeller) heard(news);
      else if (begun) renamed();
    };
    this.begins(me.labeller);
    this.here();
    setInterval(() => this.here(), HERE_MS);
  }

  here() {
    store.set(this.key, String(Date.now()));
  }

  /** This browser goes by that name now. */
  begins(labeller) {
    this.tell({ labeller, begun: true });
  }

  tell(message) {
    this.channel.postMessage({ labeller: this.labeller, ...message });
  }

  /** The page is being left, or only loaded again: the server waits a few seconds to see which. */
  leave(tokens) {
    store.remove(this.key);
    const others = store.keys(this.prefix).filter((key) => Date.now() - Number(store.get(key)) < 3 * HERE_MS);
    if (others.length || !tokens.length) return;
    const body = JSON.stringify({ tokens: tokens.slice(0, 8), leaving: true });
    navigator.sendBeacon("/api/release", new Blob([body], { type: "application/json" }));
  }
}
