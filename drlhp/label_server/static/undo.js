// Taking back the newest answer, at the server or out of the outbox.

import { call } from "./api.js";
import { toast } from "./toast.js";

/** Why undo did nothing, in the server's own words if it gave some. */
const notUndone = (error) => (error.reason ? `Not undone: ${error.reason}` : "Offline: undo works again with the connection");

export class Undo {
  constructor(outbox, pairs) {
    this.outbox = outbox;
    this.pairs = pairs;
    this.seq = null; // of the newest answer that this page has stored
    this.token = null; // of its pair's lease
  }

  /** The newest answer has this seq now. */
  stored(seq, token) {
    this.seq = seq;
    this.token = token;
  }

  /** Returns {lease, marks} of the answer that was taken back; null if none was, which is said. */
  async takeBack() {
    const unsent = this.outbox.takeBack();
    if (unsent) return { lease: unsent.lease, marks: unsent.body };
    if (!(await this.outbox.flush())) return toast(notUndone(this.outbox.trouble)), null;
    let reply;
    try {
      reply = await call("POST", "/api/undo", { seq: this.seq });
    } catch (error) {
      // The server may have done it all the same: then it hands the pair out again, which must not stay hidden.
      if (this.token) this.pairs.forgetAnswered(this.token);
      if (error.status !== 409) return toast(notUndone(error)), null;
      this.seq = null; // the next try takes what the server has as the newest
      return toast("Your newest answer is another one now: press U again to undo that"), null;
    }
    this.seq = null;
    const { lease, ...marks } = reply;
    return lease ? { lease, marks } : (toast("There is nothing to undo"), null);
  }
}
