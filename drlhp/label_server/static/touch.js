// Answers given on the clips themselves. A mouse clicks the better clip. A finger swipes: left, right, up and down are
// the four answers. While it moves, the answer it would give is written across the clips; lifting it near where it began
// gives none.

const LEAST = 48; // pixels
const NAMES = { left: "← Left is better", right: "Right is better →", equal: "↑ Equally good", incomparable: "↓ Can’t tell" };

export function answersOnClips(stage, label, answer) {
  let from = null, byMouse = true; // whether the last press was the mouse's

  function choice(event) {
    const x = event.clientX - from.x, y = event.clientY - from.y;
    if (Math.hypot(x, y) < LEAST) return null;
    if (Math.abs(x) > Math.abs(y)) return x < 0 ? "left" : "right";
    return y < 0 ? "equal" : "incomparable";
  }

  function show(name) {
    label.textContent = name ? NAMES[name] : "";
    label.classList.toggle("on", Boolean(name));
  }

  stage.addEventListener("pointerdown", (event) => {
    byMouse = event.pointerType === "mouse";
    if (byMouse || !event.isPrimary) return;
    from = { x: event.clientX, y: event.clientY };
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => from && event.isPrimary && show(choice(event)));
  stage.addEventListener("pointerup", (event) => {
    if (!from || !event.isPrimary) return;
    const chosen = choice(event);
    from = null;
    show(null);
    if (chosen) answer(chosen);
  });
  stage.addEventListener("pointercancel", () => {
    from = null;
    show(null);
  });
  stage.addEventListener("click", ({ target }) => byMouse && target.tagName === "CANVAS" && answer(target.id));
}
