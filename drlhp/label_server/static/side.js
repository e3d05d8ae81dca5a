// The right column: the last answers, the last full episode and the curves of the run.

import { call } from "./api.js";
import { drawFrame, loadClip } from "./clips.js";

const RECENT = 10; // answers
const SVG = "http://www.w3.org/2000/svg";
const WORDS = { left: "left is better", right: "right is better", equal: "equally good", incomparable: "can’t tell" };
export const words = (choice) => WORDS[choice];

/** A button with both clips' middle frames, what was chosen framed; a click opens it. */
export function thumbnail(row, open) {
  const item = document.createElement("li");
  const button = item.appendChild(document.createElement("button"));
  button.type = "button";
  button.className = "thumb";
  button.dataset.seq = row.seq;
  const flagged = row.flag ? `⚑ ${row.note || "flagged"}` : "";
  button.setAttribute("aria-label", `Answer ${row.seq}: ${WORDS[row.choice]}${row.flag ? ", flagged" : ""}. Change it`);
  for (const side of ["left", "right"]) {
    const canvas = button.appendChild(document.createElement("canvas"));
    canvas.width = canvas.height = 84;
    if (row.choice === side || row.choice === "equal") canvas.className = "chosen";
    loadClip(row[side]).then((clip) => drawFrame(canvas, clip, Math.floor(clip.frames / 2)), () => {});
  }
  button.appendChild(document.createElement("span")).textContent = [WORDS[row.choice], flagged].filter(Boolean).join(" · ");
  button.addEventListener("click", () => open(row));
  return item;
}

export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e7 ? 0 : 1)}M`;
  if (size >= 1e4) return `${Math.round(value / 1e3)}k`;
  if (size >= 100) return String(Math.round(value));
  return String(Math.round(value * (size >= 1 ? 10 : 1000)) / (size >= 1 ? 10 : 1000));
}

/** Seconds in hours and minutes; never less than a minute. */
export function duration(seconds) {
  const minutes = Math.max(1, Math.round(seconds / 60)), hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

/** A curve as a small picture with its range and its newest value in words. */
export function sparkline(curve) {
  const { name, unit, steps, values } = curve;
  const low = Math.min(...values), high = Math.max(...values), start = steps[0], end = steps.at(-1);
  const x = (step) => ((step - start) / (end - start || 1)) * 100, y = (value) => 38 - ((value - low) / (high - low || 1)) * 36;
  const figure = document.createElement("figure");
  figure.className = "curve";
  const caption = figure.appendChild(document.createElement("figcaption"));
  const percent = unit === "%" ? "%" : "";
  caption.append(name + (unit && !percent ? ` (${unit})` : ""));
  caption.appendChild(document.createElement("b")).textContent = number(values.at(-1)) + percent;
  const svg = figure.appendChild(document.createElementNS(SVG, "svg"));
  const attributes = { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
  const text = `${name}: from ${number(values[0])} to ${number(values.at(-1))}, between ${number(low)} and ${number(high)}`;
  svg.setAttribute("aria-label", text);
  if (low < 0 && high > 0) {
    const zero = svg.appendChild(document.createElementNS(SVG, "line"));
    for (const [key, value] of Object.entries({ x1: 0, x2: 100, y1: y(0), y2: y(0) })) zero.setAttribute(key, value);
  }
  const line = svg.appendChild(document.createElementNS(SVG, "polyline"));
  line.setAttribute("points", steps.map((step, i) => `${x(step).toFixed(2)},${y(values[i]).toFixed(2)}`).join(" "));
  const scale = figure.appendChild(document.createElement("div"));
  scale.className = "scale";
  for (const part of [`${number(low)}${percent} to ${number(high)}${percent}`, `${number(end)} steps`])
    scale.appendChild(document.createElement("span")).textContent = part;
  return figure;
}

export class Side {
  constructor(open) {
    this.open = open;
    this.episode = null;
    this.told = { curves: [] }; // by the server, of the curves
    setInterval(() => this.visible() && this.curves(), 15000);
    // On a narrow screen the column appears when there is no pair, and was not kept up until then.
    new IntersectionObserver((seen) => seen.at(-1).isIntersecting && this.recent()).observe(document.querySelector("aside"));
  }

  /** Whether somebody can see the column: the page is in front, and wide or waiting. */
  visible() {
    return document.visibilityState === "visible" && document.querySelector("aside").offsetParent !== null;
  }

  async curves() {
    try {
      this.told = await call("GET", "/api/curves");
    } catch {
      return; // the banner says what is wrong
    }
    this.draw();
  }

  draw() {
    // The run writes its table now and then: the labels that there are by now come behind what that has.
    const upToNow = (curve) => ({ ...curve, steps: [...curve.steps, curve.steps.at(-1)], values: [...curve.values, this.labels] });
    const figures = this.told.curves.map((curve) => sparkline(curve.name === "Labels" ? upToNow(curve) : curve));
    if (this.told.true_reward) {
      const mark = document.createElement("p");
      mark.className = "mark";
      mark.textContent = "Evaluation mode: the true reward is shown.";
      figures.unshift(mark);
    }
    document.querySelector("#curves").replaceChildren(...figures);
    document.querySelector("#curves-none").hidden = figures.length > 0;
  }

  async recent() {
    if (!this.visible()) return;
    const asked = (this.asked = (this.asked ?? 0) + 1);
    let rows;
    try {
      rows = (await call("GET", `/api/history?limit=${RECENT}`)).rows;
    } catch {
      return;
    }
    if (asked !== this.asked) return; // replies may overtake each other
    // One that was changed has another seq. The others stay: their clips may not be in memory any more.
    this.thumbs = new Map(rows.map((row) => [row.seq, this.thumbs?.get(row.seq) ?? thumbnail(row, this.open)]));
    document.querySelector("#recent").replaceChildren(...this.thumbs.values());
    document.querySelector("#recent-none").hidden = rows.length > 0;
  }

  status(status) {
    if (status.labels !== this.labels) {
      this.labels = status.labels;
      this.draw();
    }
    if (status.episode === this.episode) return;
    this.episode = status.episode;
    document.querySelector("#episode-section").hidden = !status.episode;
    if (!status.episode) return;
    const film = document.querySelector("#episode"), playing = !film.paused;
    film.src = `/api/episode?v=${encodeURIComponent(status.episode)}#t=0.001`; // or Safari shows no picture of it
    if (playing) film.play().catch(() => {}); // by itself it would take eyes from the pair, and time from the training
  }
}
