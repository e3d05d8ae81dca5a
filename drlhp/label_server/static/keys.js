// The page's keys, by a KeyboardEvent's `key` in lower case -> action. JSON, because a test compares it with the one
// table of keys, drlhp/screens/keys.py.
const KEYS = {
  "l": "left", "arrowleft": "left", "r": "right", "arrowright": "right", "e": "equal", "arrowup": "equal",
  "enter": "incomparable", "arrowdown": "incomparable", "u": "undo", "backspace": "undo", " ": "pause",
  ",": "back", ".": "forward", "[": "slower", "]": "faster", "home": "replay", "s": "skip", "f": "flag",
  "g": "gallery", "q": "quality", "p": "break", "h": "help", "?": "help", "t": "start"
};

// Keys that a control which has the keyboard handles itself; null: all.
const NATIVE = { BUTTON: ["enter", " "], A: ["enter"], VIDEO: [" "], SELECT: null, TEXTAREA: null, INPUT: null };
const NATIVE_RANGE = ["arrowleft", "arrowright", "arrowup", "arrowdown", "home"];

/** Returns the action of a key press while no dialog is open; null if it has none. */
export function keyAction(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  // A dialog that was just closed has the keyboard until the next refresh, but the labeller types to the page.
  const target = event.target.closest?.("dialog") ? document.body : event.target;
  const key = event.key.toLowerCase(), { tagName, type } = target;
  const own = type === "range" ? NATIVE_RANGE : NATIVE[tagName];
  if (own === null || own?.includes(key)) return null;
  return KEYS[key] ?? null;
}
