// The pairs that this page has on lease: the one on screen and a few that are ready to follow it at once.

import { Unreachable, call, store } from "./api.js";
import { loadClip } from "./clips.js";

const AHEAD = 3, MOST = 8; // pairs ready behind the one on screen; leases in one request
const RENEW_MS = 20000, RETRY_MS = 2000;

export class Pairs {
  /** hooks: changed() when the first pair may be another; status(status); lost(error) or lost(null);
   *  broken(why): a pair cannot be shown. */
  constructor(outbox, hooks) {
    this.outbox = outbox;
    this.hooks = hooks;
    this.list = []; // {lease, clips: [left, right] or null, flag, note}
    this.away = ""; // why nothing is claimed: "break", "tour", or "done" when nobody is asked any more
    setInterval(() => document.visibilityState === "visible" && this.renew(), RENEW_MS);
  }

  get first() {
    return this.list[0]?.clips ? this.list[0] : null;
  }

  tokens() {
    return this.list.map((pair) => pair.lease.token);
  }

  /** Takes a pair off; true if it was the first. */
  drop(token) {
    const index = this.list.findIndex((pair) => pair.lease.token === token);
    if (index >= 0) this.list.splice(index, 1);
    return index === 0;
  }

  /** Puts a pair in front of all others, with the marks it had; it may be one that is here already. */
  async unshift(lease, { flag, note }) {
    const known = this.list.find((pair) => pair.lease.token === lease.token);
    const pair = Object.assign(known ?? { lease, clips: null }, { flag, note });
    this.list = [pair, ...this.list.filter((other) => other !== pair)];
    this.remember(pair);
    await this.load(pair);
  }

  /** Claims what is missing. One request at a time: a call meanwhile makes it ask once more. */
  async fill() {
    if (this.away) return;
    if (this.filling) {
      this.again = true;
      return;
    }
    this.filling = true;
    clearTimeout(this.timer);
    try {
      do {
        this.again = false;
        await this.claim();
      } while (this.again);
      this.hooks.lost(null);
    } catch (error) {
      this.hooks.lost(error);
      if (error instanceof Unreachable) this.timer = setTimeout(() => this.fill(), RETRY_MS);
    } finally {
      this.filling = false;
    }
  }

  async claim() {
    const sent = () => new Set(this.outbox.items().map((item) => item.body.token));
    const before = sent(); // these are still on lease for the server
    const { leases, status } = await call("POST", "/api/next", { n: Math.min(MOST, 1 + AHEAD + before.size) });
    if (this.away) return this.release(leases.map((lease) => lease.token)); // the break began meanwhile
    const answered = new Set([...before, ...sent(), ...(this.justAnswered ?? [])]);
    const granted = new Set(leases.map((lease) => lease.token));
    // The pair on screen stays even if its lease is over: an answer that is late is kept too.
    this.list = this.list.filter((pair, index) => index === 0 || granted.has(pair.lease.token));
    const here = new Set(this.tokens());
    for (const lease of leases) {
      if (answered.has(lease.token) || here.has(lease.token)) continue;
      // The same pair again, whose lease was over while nobody looked: it is asked once.
      const same = ["comparison_id", "left", "right"].every((key) => lease[key] === this.list[0]?.lease[key]);
      if (same) this.list[0].lease = lease;
      else this.list.push({ lease, clips: null, flag: false, note: "", ...JSON.parse(store.get(this.marksOf(lease))) });
    }
    this.none = leases.length === 0; // for me, whatever the status says: others may be given some
    this.hooks.status(status);
    for (const pair of [...this.list]) await this.load(pair); // in order: the first is wanted first
    this.hooks.changed();
  }

  /** Where this browser keeps the flag and the note of a pair, for when it comes again: after a break or a reload. */
  marksOf({ comparison_id }) {
    return `${this.outbox.prefix.replace("outbox", "marks")}${comparison_id}`;
  }

  remember({ lease, flag, note }) {
    store.set(this.marksOf(lease), JSON.stringify({ flag, note }));
  }

  forget({ lease }) {
    store.remove(this.marksOf(lease));
  }

  async load(pair) {
    if (pair.clips) return;
    pair.clips = await Promise.all([loadClip(pair.lease.left), loadClip(pair.lease.right)]);
    const broken = pair.clips.find((clip) => clip.error);
    if (broken) {
      // The server has taken the question back, of everybody.
      this.drop(pair.lease.token);
      this.answered(pair.lease.token);
      this.hooks.broken(broken.error);
      this.again = true; // for another in its place
    }
    if (pair === this.list[0] || broken) this.hooks.changed();
  }

  /** Remembers answers given a moment ago: a claim on its way may still bring their pairs. */
  answered(token) {
    this.justAnswered = [token, ...(this.justAnswered ?? [])].slice(0, 20);
  }

  forgetAnswered(token) {
    this.justAnswered = (this.justAnswered ?? []).filter((other) => other !== token);
  }

  async renew() {
    if (this.away || !this.list.length) return;
    try {
      await call("POST", "/api/renew", { tokens: this.tokens().slice(0, MOST) });
    } catch {
      this.fill(); // says what is wrong
    }
  }

  /** Gives back some pairs, or all. */
  async release(tokens) {
    this.list = this.list.filter((pair) => !tokens.includes(pair.lease.token));
    await call("POST", "/api/release", { tokens: tokens.slice(0, MOST) });
  }
}
