// A sound for who waits for pairs, if they want one; it is made here, so that nothing is loaded.

import { store } from "./api.js";

const HERTZ = 660, SECONDS = 0.25, LOUDNESS = 0.15;
let context = null;

export function chime() {
  if (store.get("sound") !== "on") return;
  context ??= new AudioContext();
  context.resume(); // before anybody has touched the page a browser stays silent
  const tone = new OscillatorNode(context, { frequency: HERTZ }), volume = new GainNode(context, { gain: LOUDNESS });
  volume.gain.linearRampToValueAtTime(0, context.currentTime + SECONDS);
  tone.connect(volume).connect(context.destination);
  tone.start();
  tone.stop(context.currentTime + SECONDS);
}

/** The box that turns it on and off, which lets it be heard. */
export function soundBox(box) {
  box.checked = store.get("sound") === "on";
  box.addEventListener("change", () => {
    store.set("sound", box.checked ? "on" : "off");
    chime();
    box.blur();
  });
}
