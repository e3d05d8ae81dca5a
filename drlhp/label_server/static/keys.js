// Which key does what; in upper and lower case.

const KEYS = {
  l: "left", arrowleft: "left", r: "right", arrowright: "right", e: "equal", arrowup: "equal",
  enter: "incomparable", arrowdown: "incomparable", u: "undo", backspace: "undo", " ": "pause",
  ",": "back", ".": "on", "[": "slower", "]": "faster", home: "replay", s: "skip", f: "flag", g: "gallery",
  q: "quality", h: "help", "?": "help", p: "break", t: "start",
};

// Keys that a control understands itself, for those who have reached it by keyboard; null: all.
const NATIVE = { BUTTON: ["enter", " "], A: ["enter"], VIDEO: [" "], SELECT: null, TEXTAREA: null, INPUT: null };
const NATIVE_RANGE = ["arrowleft", "arrowright", "arrowup", "arrowdown", "home"];

/** What a key press asks for while no dialog is open; null if it is not ours. */
export function keyAction(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  // A dialog that was just closed has the keyboard until the next refresh, but it is the page that is typed to.
  const target = event.target.closest?.("dialog") ? document.body : event.target;
  const key = event.key.toLowerCase(), { tagName, type } = target;
  const own = type === "range" ? NATIVE_RANGE : NATIVE[tagName];
  if (own === null || own?.includes(key)) return null;
  return KEYS[key] ?? null;
}
