// Clips as sprite sheets, and the player that shows two of them on one clock.

import { Refused, Unreachable } from "./api.js";

const MEMORY = 256 * 2 ** 20; // bytes of decoded sheets that are kept
const HOLD = 0.25; // seconds for which the last frame stays, so that the end of the loop is seen
const IDLE_MS = 100; // between looks at the clock while nothing moves
const sheets = new Map(); // {clip, bytes} by segment id, the longest unused first

/** A clip by segment id: {bitmap, frames, width, height, columns, fps}, or {error} if it cannot be shown. */
export function loadClip(id) {
  const sheet = sheets.get(id) ?? { clip: fetchClip(id), bytes: 0 };
  sheets.delete(id);
  sheets.set(id, sheet);
  sheet.clip.then(({ bitmap }) => {
    sheet.bytes = bitmap ? 4 * bitmap.width * bitmap.height : 0;
    tidy();
  }, () => sheets.delete(id));
  return sheet.clip;
}

/** Lets go of the sheets for which there is no room; those on screen or ahead stay with whoever shows them. */
function tidy() {
  let held = 0;
  for (const [id, { bytes }] of [...sheets].reverse()) {
    held += bytes;
    if (held > MEMORY) sheets.delete(id);
  }
}

async function fetchClip(id) {
  let response;
  try {
    response = await fetch(`/api/clip/${id}`, { signal: AbortSignal.timeout(20000) });
  } catch (error) {
    throw new Unreachable(error.message);
  }
  if (response.status === 401) throw new Refused(401, await response.json());
  if (response.status >= 500) {
    const { error } = await response.json().catch(() => ({})); // of a proxy it need not be JSON
    throw new Unreachable(error ?? "the server is in trouble", error);
  }
  if (!response.ok) {
    return { error: (await response.json()).error, frames: 1, width: 160, height: 160, columns: 1, fps: 1 };
  }
  const clip = {};
  for (const name of ["frames", "width", "height", "columns", "fps"]) clip[name] = Number(response.headers.get(`X-${name}`));
  try {
    clip.bitmap = await createImageBitmap(await response.blob());
  } catch (error) {
    throw new Unreachable(error.message);
  }
  return clip;
}

/** Draws one frame of a clip; the canvas gets so many times the clip's own size, and CSS makes it larger or smaller. */
export function drawFrame(canvas, clip, index, times = 1) {
  if (canvas.width !== clip.width * times || canvas.height !== clip.height * times) {
    canvas.width = clip.width * times;
    canvas.height = clip.height * times;
  }
  const context = canvas.getContext("2d", { alpha: false }); // less to do for who puts it on screen
  context.setTransform(times, 0, 0, times, 0, 0);
  context.imageSmoothingEnabled = false;
  if (clip.error) {
    context.fillStyle = "#a00";
    context.fillRect(0, 0, clip.width, clip.height);
    context.fillStyle = "#fff";
    context.font = "12px sans-serif";
    clip.error.match(/.{1,24}(\s|$)/g).forEach((line, i) => context.fillText(line, 6, 20 + 16 * i, clip.width - 12));
    return;
  }
  const i = Math.min(index, clip.frames - 1);
  const x = (i % clip.columns) * clip.width, y = Math.floor(i / clip.columns) * clip.height;
  context.drawImage(clip.bitmap, x, y, clip.width, clip.height, 0, 0, clip.width, clip.height);
}

/** Two canvases, one clock: both always show the same moment. */
export class Player {
  /** hooks: frame(index, n) whenever another frame is shown. */
  constructor(left, right, hooks) {
    this.canvases = [left, right];
    this.hooks = hooks;
    this.clips = null;
    this.playing = true;
    this.speed = 1;
    this.times = 1; // the clips' own size, in which they are drawn
    this.time = 0; // seconds of the clip
    this.watched = 0; // milliseconds for which this pair has been on
    this.last = performance.now();
    this.tick();
    // Its room changes with the window, and with what else is on the page: a banner that comes and goes.
    new ResizeObserver(() => this.fit()).observe(left.closest("figure"));
    addEventListener("resize", () => this.fit()); // a move to a screen with other pixels
  }

  get frames() {
    return this.clips ? Math.max(this.clips[0].frames, this.clips[1].frames) : 0;
  }

  get fps() {
    return this.clips[0].error ? this.clips[1].fps : this.clips[0].fps;
  }

  /**
   * Starts a pair from frame 0 of both, and draws that at once. This first time frame 0 stays for one refresh of the
   * screen only, so that the pair is seen to move at once; all else, and every further round, is at real speed.
   */
  show(left, right) {
    this.clips = [left, right];
    this.time = this.watched = 0;
    this.playing = this.fresh = true;
    this.index = -1;
    this.fit();
    this.draw(0);
    this.wake(0);
  }

  clear() {
    this.clips = null;
  }

  tick(now = performance.now()) {
    // A tab in the background stands still. A refresh tells of its own moment, which may be a little before.
    const passed = document.hidden ? 0 : Math.max(0, Math.min(now - this.last, 250));
    this.last = now;
    if (this.fresh) {
      // This refresh puts frame 0 on screen. The next one shows frame 1, even if it comes at once (on a busy machine).
      this.fresh = false;
      this.time = this.clips ? 1 / this.fps : 0;
      this.wake(0);
      return;
    }
    if (this.clips) {
      this.watched += passed;
      if (this.playing) {
        this.time = (this.time + (passed / 1000) * this.speed) % (this.frames / this.fps + HOLD);
        this.draw(Math.min(Math.floor(this.time * this.fps + 1e-6), this.frames - 1));
      }
    }
    this.wake(Math.max(this.untilNext(), 1));
  }

  /** Milliseconds until another frame is due. */
  untilNext() {
    if (!this.clips || !this.playing) return IDLE_MS;
    const due = this.index < this.frames - 1 ? (this.index + 1) / this.fps : this.frames / this.fps + HOLD;
    return Math.min((1000 * (due - this.time)) / this.speed, IDLE_MS);
  }

  /**
   * Has the next tick come so many milliseconds from now, or with the next refresh of the screen where that is 0. Such
   * a callback is a quarter of what a frame costs, so no other tick asks for one.
   */
  wake(ms) {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.request);
    if (ms > 0) this.timer = setTimeout(() => this.tick(), ms);
    else this.request = requestAnimationFrame((now) => this.tick(now));
  }

  draw(index) {
    if (index === this.index) return;
    this.index = index;
    this.paint();
    this.hooks.frame(index, this.frames);
  }

  paint() {
    this.canvases.forEach((canvas, side) => drawFrame(canvas, this.clips[side], this.index, this.times));
  }

  /** Stops at a frame. */
  seek(index) {
    if (!this.clips) return;
    this.playing = this.fresh = false;
    const i = Math.max(0, Math.min(index, this.frames - 1));
    this.time = i / this.fps;
    this.draw(i);
  }

  step(by) {
    this.seek((this.index + by + this.frames) % this.frames);
  }

  replay() {
    this.time = 0;
    this.playing = true;
    this.fresh = false;
    this.wake(0);
  }

  /**
   * Makes both as large as there is room for, by a whole number of screen pixels; one and a half is drawn as three, which
   * the browser makes smaller, so that every edge is as sharp as any other.
   */
  fit() {
    if (!this.clips) return;
    const ratio = devicePixelRatio || 1;
    const width = Math.max(...this.clips.map((c) => c.width)), height = Math.max(...this.clips.map((c) => c.height));
    const figure = this.canvases[0].closest("figure"), caption = figure.querySelector("figcaption").offsetHeight;
    const room = Math.min((figure.clientWidth - 8) / width, (figure.clientHeight - caption - 12) / height);
    const half = room * ratio >= 1.5 && room * ratio < 2, pixels = half ? 1.5 : Math.floor(room * ratio);
    const scale = pixels >= 1 ? pixels / ratio : Math.max(room, 0.1);
    this.times = half ? 3 : 1;
    if (this.index >= 0) this.paint();
    this.canvases.forEach((canvas, side) => {
      canvas.style.imageRendering = half ? "auto" : "";
      canvas.style.width = `${this.clips[side].width * scale}px`;
      canvas.style.height = `${this.clips[side].height * scale}px`;
      canvas.closest("figure").style.setProperty("--clip-width", `${this.clips[side].width * scale}px`);
    });
  }
}
