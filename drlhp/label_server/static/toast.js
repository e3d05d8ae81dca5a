// Short news below the clips, and the light on an answer that was just given.

const $ = (id) => document.getElementById(id);
const TOAST_MS = 4000, TOAST_MS_PER_LETTER = 60; // to be seen, and to be read without haste
const FLASH_MS = 150;

let toasting = null; // the timer of the present text

/** Shows a text for as long as reading it takes. */
export function toast(text) {
  $("toast").textContent = text;
  clearTimeout(toasting);
  toasting = setTimeout(() => ($("toast").textContent = ""), TOAST_MS + TOAST_MS_PER_LETTER * text.length);
}

/** Lights up the sides and the button of an answer. */
export function flash(choice) {
  const sides = { left: ["left"], right: ["right"], equal: ["left", "right"], incomparable: [] }[choice];
  const marked = [...sides.map((name) => $(`${name}-figure`).classList), document.querySelector(`.answer[data-choice=${choice}]`).classList];
  marked.forEach((classes, i) => classes.add(i < sides.length ? "chosen" : "pressed"));
  setTimeout(() => marked.forEach((classes) => classes.remove("chosen", "pressed")), FLASH_MS);
}
