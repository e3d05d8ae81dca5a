// Notices when nobody has touched the page for a while.

/** Calls `left` again and again while nobody presses, moves or turns anything for so many minutes. */
export function watchIdle(minutes, left) {
  let timer = null;
  const touched = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { touched(); left(); }, 60000 * minutes);
  };
  for (const sign of ["keydown", "pointerdown", "pointermove", "wheel"]) addEventListener(sign, touched, { passive: true });
  touched();
}
