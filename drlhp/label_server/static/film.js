// The controls below the clips: the slider and the speed; and how soon a key press is seen.

import { store } from "./api.js";
import { toast } from "./toast.js";

const $ = (id) => document.getElementById(id);
const SPEEDS = [0.25, 0.5, 1, 2, 4];

/** Moves the slider to the player's frame. */
export function showFrame(player) {
  const scrub = $("scrub");
  scrub.max = player.frames - 1;
  scrub.value = player.index;
  scrub.setAttribute("aria-valuetext", `frame ${player.index + 1} of ${player.frames}`);
}

/** Makes the slider and the choice of the speed work; returns the actions of the keys for both. changed(): it stopped. */
export function filmControls(player, changed) {
  const scrub = $("scrub"), speed = $("speed");
  scrub.addEventListener("input", () => { player.seek(Number(scrub.value)); changed(); });
  scrub.addEventListener("pointerup", () => scrub.blur());
  speed.addEventListener("change", () => { setSpeed(player, Number(speed.value)); speed.blur(); });
  return {
    pause: () => { player.playing = !player.playing; if (player.clips) showFrame(player); changed(); },
    back: () => { player.step(-1); changed(); },
    forward: () => { player.step(1); changed(); },
    slower: () => changeSpeed(player, -1),
    faster: () => changeSpeed(player, 1),
  };
}

function setSpeed(player, speed) {
  player.speed = speed;
  $("speed").value = String(speed);
  store.set("speed", String(speed));
}

/** Sets the speed that this browser remembers. */
export function rememberedSpeed(player) {
  const speed = Number(store.get("speed"));
  setSpeed(player, SPEEDS.includes(speed) ? speed : 1);
}

function changeSpeed(player, by) {
  const speed = SPEEDS[SPEEDS.indexOf(player.speed) + by];
  if (speed) setSpeed(player, speed);
  toast(`Speed ${player.speed}×`);
}

/**
 * For measurements: reports how long ago the key was pressed, at the moment when the present drawing is on screen. The
 * first animation frame comes before that, and the second after it. A drawing made in an animation frame needs one.
 */
export function afterRefresh(name, refreshes, pressed) {
  const tell = (left) => left
    ? requestAnimationFrame(() => tell(left - 1))
    : document.dispatchEvent(new CustomEvent(name, { detail: { ms: performance.now() - pressed } }));
  tell(refreshes);
}
