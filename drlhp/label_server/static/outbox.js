// Answers on their way: kept in the browser from the moment of the key press until the server has them on disk.
// Each has a key of its own, so that two tabs never write over each other's; the server knows them by client_id, so
// that one sent twice is stored once.

import { Refused, call, store } from "./api.js";

const FIRST_DELAY = 500, LONGEST_DELAY = 15000; // milliseconds between tries

export class Outbox {
  /** hooks: received(item, receipt), refused(item, error), changed(): how many wait or whether it is offline. */
  constructor(run, labeller, hooks) {
    this.prefix = `outbox/${run}/${labeller}/`;
    this.hooks = hooks;
    this.trouble = null; // the error by which nothing gets through now
    this.delay = 0;
    this.added = 0; // by this page, whatever became of it
    this.newSeqs = new Map(); // seq of an answer that was changed here -> the one that it has now
    addEventListener("online", () => this.flush());
  }

  items() {
    return store.keys(this.prefix).map((key) => ({ key, ...JSON.parse(store.get(key)) }));
  }

  /** lease: of the pair, if this answers one, for when it is taken back. */
  add(path, body, lease) {
    this.added += 1;
    // Behind all that wait, also where the clock was put back meanwhile.
    const newest = parseInt(this.items().at(-1)?.key.slice(this.prefix.length) ?? "0", 10);
    const order = String(Math.max(Date.now(), newest + 1)).padStart(14, "0");
    store.set(`${this.prefix}${order}-${body.client_id}`, JSON.stringify({ path, body, lease, tried: false }));
    this.hooks.changed();
    this.flush();
  }

  /** Takes back the newest answer, if nothing was done since and no try to send it has been made. */
  takeBack() {
    const item = this.items().at(-1);
    if (!item?.lease || item.tried) return null;
    store.remove(item.key);
    this.hooks.changed();
    return item;
  }

  /** Sends what waits, in order; true when nothing is left. Safe to call at any time. */
  flush() {
    clearTimeout(this.timer);
    this.sending ??= this.sendAll().finally(() => (this.sending = null));
    return this.sending;
  }

  async sendAll() {
    for (;;) {
      const item = this.items()[0];
      if (!item) break;
      // A second change of one answer was made to the first one's, whose seq nobody knew yet.
      while (this.newSeqs.has(item.body.seq)) item.body.seq = this.newSeqs.get(item.body.seq);
      store.set(item.key, JSON.stringify({ path: item.path, body: item.body, tried: true }));
      try {
        const receipt = await call("POST", item.path, item.body);
        if (item.path === "/api/edit") this.newSeqs.set(item.body.seq, receipt.seq);
        store.remove(item.key);
        this.hooks.received(item, receipt);
      } catch (error) {
        if (error instanceof Refused && error.status !== 401) {
          store.remove(item.key);
          if (error.body.status === "conflict") this.hooks.received(item, error.body);
          else this.hooks.refused(item, error);
        } else {
          this.wait(error);
          return false;
        }
      }
      this.arrived();
    }
    this.arrived();
    return true;
  }

  arrived() {
    this.trouble = null;
    this.delay = 0;
    this.hooks.changed();
  }

  wait(error) {
    this.trouble = error;
    this.delay = Math.min(LONGEST_DELAY, this.delay * 2 || FIRST_DELAY);
    this.timer = setTimeout(() => this.flush(), this.delay);
    this.hooks.changed();
  }
}
