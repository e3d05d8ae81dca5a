// Three practice pairs, drawn here: a ball and a green square that it should reach. Nothing of them is stored.

const SIZE = 96, FRAMES = 25, FPS = 15, BALL = 6, SQUARE = 20; // pixels, frames, frames a second
const START = [18, 72], GOAL = [72, 24]; // middles of the ball at first and of the square

/** Returns a clip in which the ball goes straight to that place, or as far as the frames last. */
function clip([x, y]) {
  const sheet = document.createElement("canvas");
  sheet.width = SIZE * FRAMES;
  sheet.height = SIZE;
  const context = sheet.getContext("2d");
  context.fillStyle = "#1e285a";
  context.fillRect(0, 0, sheet.width, SIZE);
  for (let frame = 0; frame < FRAMES; frame++) {
    const left = frame * SIZE, share = Math.min(1, frame / (FRAMES - 6)), at = (from, to) => from + share * (to - from);
    context.fillStyle = "#2f9e5b";
    context.fillRect(left + GOAL[0] - SQUARE / 2, GOAL[1] - SQUARE / 2, SQUARE, SQUARE);
    context.fillStyle = "#ff9628";
    context.beginPath();
    context.arc(left + at(START[0], x), at(START[1], y), BALL, 0, 2 * Math.PI);
    context.fill();
  }
  return { bitmap: sheet, frames: FRAMES, width: SIZE, height: SIZE, columns: FRAMES, fps: FPS };
}

/** Returns the pairs, {clips, best}: the answer that a careful labeller gives. */
export function practicePairs() {
  return [
    { clips: [clip(GOAL), clip([60, 84])], best: "left" },
    { clips: [clip([26, 84]), clip([50, 44])], best: "right" },
    { clips: [clip(GOAL), clip(GOAL)], best: "equal" },
  ];
}
