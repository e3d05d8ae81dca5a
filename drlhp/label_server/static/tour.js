// The tour of a first-time labeller: a minute, with three practice pairs. It has pairs of its own and sends nothing, so
// that no practice answer can reach the store. Its cards are in index.html.

import { store } from "./api.js";
import { practicePairs } from "./practice.js";
import { flash } from "./toast.js";

const $ = (id) => document.getElementById(id);
const USUAL = ["pause", "back", "forward", "slower", "faster", "replay", "help"]; // actions that do the same as ever

const keyOf = (labeller) => `tour/${labeller}`;
/** Whether this browser knows that the labeller has had the tour, or has skipped it. */
export const hadTour = (labeller) => store.get(keyOf(labeller)) !== null;
export const rememberTour = (labeller) => store.set(keyOf(labeller), "had");

export class Tour {
  /** hooks: changed() when another card is shown; over() when it has ended. */
  constructor(labeller, hooks) {
    this.hooks = hooks;
    this.labeller = labeller;
    this.cards = [...document.querySelectorAll("#tour .card")];
    this.pairs = practicePairs();
    this.at = 0;
    this.said = null; // the answer to this card's pair
    $("tour-next").addEventListener("click", () => this.next());
    $("tour-skip").addEventListener("click", () => this.end());
    this.draw();
  }

  /** The practice pair on screen: the card's own, else the one before or after it. */
  get pair() {
    return this.pairs[Math.max(0, Math.min(this.at - 1, this.pairs.length - 1))];
  }

  /** Whether the card waits for an answer. */
  get asks() {
    return this.cards[this.at].dataset.asks !== undefined && this.said === null;
  }

  lets(action) {
    return action === "undo" || USUAL.includes(action);
  }

  answer(choice) {
    if (!this.asks) return this.next();
    this.said = choice;
    flash(choice);
    this.draw();
  }

  next() {
    if (this.asks) return;
    this.said = null;
    this.at += 1;
    if (this.at === this.cards.length) this.end();
    else this.draw();
  }

  /** Takes back the answer to this card's pair, else goes to the card before. */
  back() {
    if (this.said === null) this.at = Math.max(0, this.at - 1);
    this.said = null;
    this.draw();
  }

  end() {
    rememberTour(this.labeller);
    $("tour").hidden = true;
    this.point(null);
    this.hooks.over();
  }

  draw() {
    const card = this.cards[this.at], verdict = this.said === null ? "" : this.said === this.pair.best ? "right" : "wrong";
    for (const other of this.cards) other.hidden = other !== card;
    for (const words of card.querySelectorAll("[data-when]")) words.hidden = words.dataset.when !== verdict;
    $("tour-next").hidden = this.asks;
    $("tour-next").textContent = this.at === this.cards.length - 1 ? "Start labelling" : "Next";
    $("tour-skip").hidden = this.at === this.cards.length - 1;
    $("tour").hidden = false;
    this.point(card.dataset.points);
    this.hooks.changed();
  }

  /** Marks the part of the page that the card is about. */
  point(part) {
    document.querySelector(".pointed")?.classList.remove("pointed");
    if (part) $(part).classList.add("pointed");
  }
}
