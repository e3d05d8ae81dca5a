// Keeps the keyboard with the page: after a click, the next Enter is an answer, and not the same button again.

import { anyOpen } from "./dialogs.js";

let opener = null; // the button by which the mouse has opened a dialog, which gives the keyboard back to it

export function keepKeyboard() {
  document.addEventListener("click", (event) => {
    if (event.detail === 0 || event.target.tagName === "SELECT") return;
    if (anyOpen()) opener = event.target.closest("#tools button, #start") ?? opener;
    else document.activeElement?.blur();
  });
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => { opener?.blur(); opener = null; });
}
