// Dialogs: name, token, help, note, gallery, quality.

import { call } from "./api.js";
import { thumbnail } from "./side.js";
import { toast } from "./toast.js";

const $ = (id) => document.getElementById(id);
const PAGE = 24;

/** Opens a dialog and waits until it is closed; gives the button that closed it, or "" for Escape. */
export function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

/** Starts training before all initial labels are given, if the labeller confirms it; takeStatus(status) of then. */
export async function startTraining({ initial_labels, labels }, takeStatus) {
  const n = (count) => count.toLocaleString("en");
  $("start-text").textContent = `It would start by itself with ${n(initial_labels)} labels; now there are ${n(labels)}, so that the agent has less to learn from at first.`;
  if ((await ask($("start-dialog"))) !== "start") return;
  try {
    takeStatus(await call("POST", "/api/start", {}));
    toast("Training starts with the labels so far");
  } catch (error) {
    toast(`Training was not started: ${error.message}`);
  }
}

export const anyOpen = () => document.querySelector("dialog[open]") !== null;

/** A name; null if there is one already and it is kept. */
export async function askName(current) {
  $("name").value = current ?? "";
  for (;;) {
    const button = await ask($("name-dialog"));
    const name = $("name").value.trim();
    if (button && name) return name;
    if (current) return null;
  }
}

/** What a link, or the token alone, says: [token, name of whom it invites]; null if there is no token in it. */
export function inLink(text) {
  const [, token, name] = /([0-9a-f]{32})(?:&n=([^&\s]*))?/.exec(text) ?? [];
  try {
    return token ? [token, name && decodeURIComponent(name)] : null;
  } catch {
    return [token]; // half of the name was left out when it was copied
  }
}

export async function askToken(why) {
  if (why) $("token-why").textContent = why;
  for (;;) {
    await ask($("token-dialog"));
    const found = inLink($("token").value);
    $("token").value = "";
    if (found) return found;
  }
}

/** Asks for a flag and a note for a pair; changes it. */
export async function askNote(pair) {
  const { form } = $("note");
  $("note").value = pair.note;
  // At once, because the next key may answer the pair before the dialog's event `close` comes.
  form.onsubmit = ({ submitter }) => {
    const flag = submitter.value === "flag";
    Object.assign(pair, { flag, note: flag ? $("note").value.trim().slice(0, 500) : "" });
  };
  $("note").onkeydown = (event) => {
    // An Enter that ends the composing of a word, as of a Japanese one, is not yet one for the note.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit(form.querySelector("[value=flag]"));
    }
  };
  await ask($("note-dialog"));
}

export function showHelp(name, status, owner) {
  $("help-name").textContent = name;
  $("help-task").textContent = status?.task ? `The task: ${status.task}` : "";
  $("help-instructions").textContent = status?.instructions ?? "";
  $("help-instructions").hidden = !status?.instructions;
  $("rename").hidden = $("invite").hidden = !owner;
  return ask($("help-dialog"));
}

export class Gallery {
  constructor(open) {
    this.open = (row) => {
      $("gallery-dialog").close();
      open(row);
    };
    $("gallery-filter").addEventListener("change", () => this.load(true));
    $("gallery-more").addEventListener("click", () => this.load(false));
  }

  async show() {
    const closed = ask($("gallery-dialog")); // at once: until it is open, keys mean something else
    await this.load(true);
    await closed;
  }

  async load(anew) {
    const filter = $("gallery-filter").value, before = anew || !this.oldest ? "" : `&before=${this.oldest}`;
    const asked = (this.asked = (this.asked ?? 0) + 1);
    let rows;
    try {
      rows = (await call("GET", `/api/history?limit=${PAGE}${filter && `&${filter}`}${before}`)).rows;
    } catch (error) {
      $("gallery-none").textContent = `They cannot be loaded now: ${error.message}`;
      $("gallery-none").hidden = false;
      return;
    }
    if (asked !== this.asked) return; // another filter was chosen meanwhile
    this.oldest = rows.at(-1)?.seq ?? this.oldest;
    const items = rows.map((row) => thumbnail(row, this.open));
    if (anew) $("gallery").replaceChildren(...items);
    else $("gallery").append(...items);
    $("gallery-none").textContent = "No such answers.";
    $("gallery-none").hidden = $("gallery").childElementCount > 0;
    $("gallery-more").hidden = rows.length < PAGE;
  }
}

const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);

export async function showQuality() {
  const summary = $("quality-summary"), body = $("quality-table").tBodies[0];
  body.replaceChildren();
  summary.textContent = "";
  const closed = ask($("quality-dialog"));
  try {
    const quality = await call("GET", "/api/quality");
    const agreement = quality.alpha === null ? "" : ` They agree with Krippendorff’s α = ${quality.alpha.toFixed(2)} (1: always, 0: as by chance).`;
    summary.textContent = `${quality.answers} answers; ${quality.overlap} pairs were answered by more than one person.${agreement}`;
    for (const q of quality.labellers) {
      const left = q.left_rate === null ? "–" : `${percent(q.left_rate)} (${percent(q.left_low)} to ${percent(q.left_high)})`;
      const time = q.median_seconds === null ? "–" : `${q.median_seconds.toFixed(1)} s (${q.p90_seconds.toFixed(1)} s)`;
      const again = q.self_consistency === null ? "–" : `${percent(q.self_consistency)} of ${q.repeats}`;
      const row = body.insertRow();
      for (const text of [q.labeller, q.answers, time, left, percent(q.equal_share), percent(q.incomparable_share), percent(q.undone_share), again, percent(q.error_rate)])
        row.insertCell().textContent = text;
    }
  } catch (error) {
    summary.textContent = `It cannot be loaded now: ${error.message}`;
  }
  await closed;
}
