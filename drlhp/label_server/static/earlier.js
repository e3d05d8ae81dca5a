// An earlier answer on the screen, to be looked at and changed.

import { randomId } from "./api.js";
import { loadClip } from "./clips.js";
import { words } from "./side.js";
import { flash, toast } from "./toast.js";

const $ = (id) => document.getElementById(id);

/** Returns {row, clips, flag, note} of an answer; a change that still waits in this browser is the newest. */
async function loadEarlier(row, outbox) {
  const { choice, flag, note } = outbox.items().findLast(({ body }) => body.seq === row.seq)?.body ?? row;
  const clips = await Promise.all([loadClip(row.left), loadClip(row.right)]);
  return { row: { ...row, choice, flag, note }, clips, flag, note };
}

export class Earlier {
  /** changed(): another pair is to be shown. */
  constructor(outbox, changed) {
    this.outbox = outbox;
    this.changed = changed;
    this.pair = null; // on screen, in place of the question: {row, clips, flag, note}
  }

  async open(row) {
    try {
      this.pair = await loadEarlier(row, this.outbox);
    } catch (error) {
      return toast(`That pair cannot be loaded now: ${error.message}`);
    }
    this.showWhich();
    this.changed();
  }

  /** Goes back to the question, and leaves the answer as it is. */
  leave() {
    this.pair = null;
    this.changed();
  }

  change(choice) {
    const { row, flag, note } = this.pair;
    flash(choice);
    const changed = choice !== row.choice || flag !== row.flag || note !== row.note;
    if (changed) this.outbox.add("/api/edit", { client_id: randomId(), seq: row.seq, choice, flag, note });
    toast(choice === row.choice ? (changed ? "Its note is changed" : "Left as it was") : `Changed from “${words(row.choice)}” to “${words(choice)}”`);
    this.leave();
  }

  /** Says above the clips which answer is shown, with a button that leaves it as it is. */
  showWhich() {
    $("relabel").replaceChildren(document.createTextNode(`Changing an earlier answer. You said: ${words(this.pair.row.choice)}.`));
    const button = $("relabel").appendChild(document.createElement("button"));
    button.type = "button";
    button.className = "small";
    button.textContent = "Leave it (Esc)";
    button.addEventListener("click", () => this.leave());
  }
}

/** Shows on the buttons what was answered to an earlier pair (row, or undefined), the flag, and whether clips play. */
export function showMarks(row, flag, playing) {
  $("relabel").hidden = !row;
  for (const button of document.querySelectorAll(".answer")) {
    if (row) button.setAttribute("aria-pressed", String(button.dataset.choice === row.choice));
    else button.removeAttribute("aria-pressed");
  }
  document.querySelector("[data-do=flag]").classList.toggle("on", Boolean(flag));
  $("pause").querySelector("span").textContent = playing ? "Pause" : "Play";
}
