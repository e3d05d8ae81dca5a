// An earlier answer on the screen, to be looked at and changed.

import { loadClip } from "./clips.js";
import { words } from "./side.js";

const $ = (id) => document.getElementById(id);

/** Returns {row, clips, flag, note} of an answer; a change that still waits in this browser is the newest. */
export async function loadEarlier(row, outbox) {
  const { choice, flag, note } = outbox.items().findLast(({ body }) => body.seq === row.seq)?.body ?? row;
  const clips = await Promise.all([loadClip(row.left), loadClip(row.right)]);
  return { row: { ...row, choice, flag, note }, clips, flag, note };
}

/** Says above the clips which answer is shown, with a button that leaves it as it is. */
export function showEarlier(row, leave) {
  $("relabel").replaceChildren(document.createTextNode(`Changing an earlier answer. You said: ${words(row.choice)}.`));
  const button = $("relabel").appendChild(document.createElement("button"));
  button.type = "button";
  button.className = "small";
  button.textContent = "Leave it (Esc)";
  button.addEventListener("click", leave);
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
