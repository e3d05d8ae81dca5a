// The page: shows one pair after another and takes the answers. What it holds can be lost at any moment without
// loss: answers are in the outbox, pairs are on lease at the server.

import { LOGGED_OUT, Unreachable, call, randomId, store } from "./api.js";
import { Player } from "./clips.js";
import { Gallery, anyOpen, askNote, showHelp, showQuality, startTraining } from "./dialogs.js";
import { Earlier, showMarks as drawMarks } from "./earlier.js";
import { afterRefresh, filmControls, rememberedSpeed, showFrame } from "./film.js";
import { keepKeyboard } from "./focus.js";
import { watchIdle } from "./idle.js";
import { keyAction } from "./keys.js";
import { News } from "./news.js";
import { Outbox } from "./outbox.js";
import { Pairs } from "./pairs.js";
import { invite, login, rename } from "./session.js";
import { Side } from "./side.js";
import { chime, soundBox } from "./sound.js";
import { Tabs } from "./tabs.js";
import { flash, toast } from "./toast.js";
import { answersOnClips } from "./touch.js";
import { Tour, hadTour, rememberTour } from "./tour.js";
import { Undo } from "./undo.js";
import { showWaiting } from "./waiting.js";
import { statusLine, troubleWords } from "./words.js";

const $ = (id) => document.getElementById(id);
const GUARD_MS = 250; // after a pair appears: presses that were meant for the one before
const IDLE_MINUTES = 3; // after which a page that nobody touches takes a break
const TOUCH = matchMedia("(hover: none) and (pointer: coarse)");
const PACE_OVER = 20; // newest answers that count
const SAID = { left: "Left", right: "Right", equal: "Equal", incomparable: "Can’t tell" };
let me, status, outbox, pairs, earlier, side, gallery, tabs, newest;
let shown = null; // what is on screen: a pair of `pairs` or of the tour, or an earlier answer to change
let shownClock = 0, replays = 0, pressedAt = null;
let offset = 0; // server's clock minus ours, seconds
let tour = null; // while a first-time labeller is shown round
let lost = null, cut = null, refusal = "", refusedAfter = 0;
const paces = [];
const now = () => Date.now() / 1000 + offset;

const player = new Player($("left"), $("right"), {
  frame(index, frames) {
    // To move the slider is a quarter of what a frame costs: while the clips play it follows in larger steps.
    if (!player.playing || index < 2 || index % 4 === 0 || index === frames - 1) showFrame(player);
    if (pressedAt === null || index === 0) return;
    afterRefresh("pair-moving", 1, pressedAt);
    pressedAt = null;
  },
});

// What is on screen

function show() {
  const wanted = earlier.pair ?? tour?.pair ?? (pairs.away ? null : pairs.first);
  document.body.classList.toggle("waiting", !wanted);
  $("waiting").hidden = Boolean(wanted);
  for (const button of document.querySelectorAll(".answer")) button.disabled = !wanted || (tour && !tour.asks);
  $("stage").dataset.pair = wanted?.lease?.comparison_id ?? wanted?.row?.comparison_id ?? "";
  if (wanted && wanted !== shown) {
    shown = wanted;
    shownClock = performance.now();
    replays = 0;
    player.show(...wanted.clips);
    if (pressedAt !== null) afterRefresh("pair-drawn", 2, pressedAt);
  } else if (!wanted) {
    shown = null;
    player.clear();
    showReason();
  }
  showMarks();
}

/** Pairs that may be had: none where those that are left are for others. */
const ready = () => (pairs.none ? 0 : status.ready);

const showReason = () => showWaiting(status, {
  away: pairs.away, idleMinutes: nobody ? IDLE_MINUTES : 0, touch: TOUCH.matches, none: pairs.none,
  loading: pairs.list.length > 0 && !pairs.away, trouble: troubleText(), kept: outbox.items().length,
});

const showMarks = () => drawMarks(earlier.pair?.row, shown?.flag, player.playing);

/** Labels that the store has, and those that are on their way to it. */
const labels = () => status.labels + outbox.items().filter(({ path, body }) => path === "/api/answer" && body.choice !== "incomparable").length;

function showStatus() {
  if (!status) return;
  $("status").textContent = statusLine(status, { labels: labels(), paces, open: ready() + pairs.list.length });
  $("start").hidden = !status.may_start;
  $("progress").hidden = !status.goal;
  $("progress").value = status.goal ? Math.min(1, labels() / status.goal) : 0;
  $("task").textContent = status.task ? `Which clip is better? ${status.task}` : "Which clip shows the better behaviour?";
  const idle = !shown || document.visibilityState !== "visible";
  document.title = pairs.away === "done" ? "Done, thank you" : idle && ready() ? `(${ready()}) pairs ready` : "Which clip is better?";
}

/** Returns why nothing gets through now; empty while all is well. */
const troubleText = () => troubleWords(status, {
  kept: outbox.items().length, lost, troubles: [outbox.trouble, lost, cut].filter(Boolean), pair: pairs.first, over: pairs.away === "done",
});

function showBanner() {
  const trouble = troubleText(), text = trouble.startsWith(LOGGED_OUT) ? trouble : refusal || trouble;
  $("banner").hidden = !text;
  if ($("banner").textContent !== text) $("banner").textContent = text;
  if (!shown) showReason();
}

/** Whether all labels are there, or the run has ended: then nobody is asked any more, if anybody can be. */
const isOver = () => Boolean(status) && ((status.goal && labels() >= status.goal) || (status.ended && (cut || !(ready() + pairs.list.length))));

/** Stops asking once all is over, and goes on if it is not: an answer was taken back, or the run goes on. */
function settle() {
  const over = isOver();
  if (over && pairs.away !== "done" && !tour) giveBack("done");
  else if (!over && pairs.away === "done") goOn();
}

// What a person does

function answer(choice) {
  const pair = shown, pressed = performance.now();
  if (!pair || pressed - shownClock < GUARD_MS) return;
  if (tour) {
    shownClock = pressed; // for a second press, which would be for the next card
    return tour.answer(choice);
  }
  pressedAt = pressed;
  if (earlier.pair) return earlier.change(choice);
  // The server's clock is known better with every message; how long somebody looked must not depend on that.
  const answeredAt = now(), seconds = (pressed - shownClock) / 1000;
  paces.push(seconds);
  if (paces.length > PACE_OVER) paces.shift();
  const body = {
    client_id: randomId(), token: pair.lease.token, comparison_id: pair.lease.comparison_id, choice,
    shown_at: answeredAt - seconds, answered_at: answeredAt, watched_ms: Math.round(player.watched), replays, speed: player.speed,
    flag: pair.flag, note: pair.note,
  };
  pairs.drop(pair.lease.token);
  pairs.forget(pair); // they are in the answer
  pairs.answered(pair.lease.token);
  flash(choice);
  show(); // the next pair first: all else may take its time
  toast(`${SAID[choice]} – ${TOUCH.matches ? "Undo takes it back" : "U to undo"}`);
  outbox.add("/api/answer", body, pair.lease);
  tabs.tell({ answered: pair.lease.token });
  settle();
}

let undoing = null; // one at a time
function undo() {
  if (tour) return tour.back();
  undoing ??= undoNewest().finally(() => (undoing = null));
}

async function undoNewest() {
  if (earlier.pair) return earlier.leave();
  const undone = await newest.takeBack();
  if (!undone) return;
  const { lease, marks } = undone;
  pairs.forgetAnswered(lease.token);
  if (pairs.away) goOn();
  tabs.tell({ undone: lease.token });
  paces.pop();
  await pairs.unshift(lease, marks).catch(() => pairs.fill());
  show();
  toast("Undone – this pair again");
  side.recent();
}

async function skip() {
  if (!shown || earlier.pair) return;
  const { token } = shown.lease;
  pairs.drop(token);
  show();
  toast("Passed on to somebody else");
  await pairs.release([token]).catch(() => {});
  pairs.fill();
}

function takeBreak() {
  if (pairs.away) return pairs.away === "break" && goOn();
  nobody = false;
  leave();
}

let nobody = false; // whether the break began by itself

/** Takes a break, so that others get the pairs, and clips that nobody sees cost no time. */
function nobodyIsHere() {
  if (!shown || tour) return;
  nobody = true;
  $("episode").pause();
  leave();
}

async function leave() {
  earlier.pair = null;
  toast("");
  await giveBack("break");
}

/** Gives all pairs back and claims none. */
async function giveBack(why) {
  pairs.away = why;
  const tokens = pairs.tokens();
  pairs.list = [];
  show();
  showStatus();
  if (tokens.length) await call("POST", "/api/release", { tokens: tokens.slice(0, 8) }).catch(() => {});
}

function goOn() {
  pairs.away = "";
  show();
  pairs.fill();
}

function showRound() {
  pairs.away = "tour"; // so long others may have the pairs
  tour = new Tour(me.labeller, { changed: show, over: () => { tour = null; goOn(); } });
}

async function flag() {
  const pair = shown;
  if (!pair) return;
  await askNote(pair);
  showMarks();
  if (pair.lease) pairs.remember(pair);
  if (pair === shown && pair.flag) toast("Flagged: the note goes with your answer");
}

const ACTIONS = {
  undo, skip, flag,
  ...filmControls(player, showMarks),
  replay: () => { player.replay(); replays += 1; showMarks(); },
  gallery: () => gallery.show(),
  quality: showQuality,
  help: () => showHelp(me.labeller, status, me.owner),
  break: takeBreak,
  start: () => status?.may_start && startTraining(status, takeStatus),
};

function act(name) {
  if (tour && !(name in SAID) && !tour.lets(name)) return toast("That is for after the tour");
  if (name in SAID) answer(name);
  else if (name === "pause" || name === "back" || name === "forward") player.clips && ACTIONS[name]();
  else ACTIONS[name]();
}

function onKey(event) {
  const name = anyOpen() || event.defaultPrevented ? null : keyAction(event); // prevented: it has closed a dialog
  // A button that has the keyboard would be pressed again and again while Enter is held down.
  if (event.repeat && event.target.tagName === "BUTTON") event.preventDefault();
  if (event.key === "Escape" && tour && !anyOpen()) return tour.end();
  if (event.key === "Escape" && earlier.pair && !anyOpen()) return earlier.leave();
  if (!name) return;
  event.preventDefault();
  if (event.repeat && name !== "back" && name !== "forward") return;
  if (pairs.away === "break" && !earlier.pair && name in SAID) return goOn();
  act(name);
}

function listen() {
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => location.hash.startsWith("#t=") && location.reload()); // another link
  keepKeyboard();
  for (const button of document.querySelectorAll(".answer")) button.addEventListener("click", () => answer(button.dataset.choice));
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
  $("pause").addEventListener("click", () => act("pause"));
  $("resume").addEventListener("click", goOn);
  soundBox($("sound"));
  $("start").addEventListener("click", () => act("start"));
  $("rename").addEventListener("click", () => rename(me, { flush: () => outbox.flush(), leave, goOn, told: named }));
  $("invite").addEventListener("click", invite);
  answersOnClips($("stage"), $("swipe-label"), answer);
  addEventListener("pageshow", (event) => event.persisted && pairs.fill());
  document.addEventListener("visibilitychange", () => {
    news.follow();
    showStatus();
    if (document.visibilityState === "visible") pairs.fill();
  });
  addEventListener("pagehide", () => tabs.leave(pairs.tokens()));
}

/** The labeller goes by another name now. */
function named(name) {
  tabs.begins(name);
  if (!tour) rememberTour(name);
}

function fromOtherTab({ answered, undone, ended }) {
  if (ended) return takeStatus(ended, false);
  if (undone) pairs.forgetAnswered(undone);
  if (answered) {
    pairs.answered(answered);
    if (pairs.drop(answered)) {
      show();
      toast("Answered in another tab");
    }
  }
  pairs.fill();
}

// Beginning

function takeStatus(next, mayClaim = true) {
  if (next.goal && next.labels >= next.goal) next.ready = 0; // nobody is asked any more
  const woken = next.ready > 0 && pairs.list.length === 0;
  if (woken && !pairs.away && status?.ready === 0) chime();
  if (mayClaim && next.ready > status?.ready) pairs.none = false; // one of the new ones may be for us
  status = next;
  reached();
  offset = next.now - Date.now() / 1000;
  settle();
  showStatus();
  side.status(next);
  if (mayClaim && woken && document.visibilityState === "visible") pairs.fill();
}

/** The server has answered. */
function reached() {
  cut = null;
  showBanner();
}

function unreached(error) {
  cut = error;
  settle();
  showBanner();
}

const news = new News({
  status(next) {
    if (next.ended) tabs.tell({ ended: next }); // they may not hear of it
    takeStatus(next);
  },
  event() {
    if (outbox.trouble) outbox.flush();
    if (lost) pairs.fill();
  },
  unreached: (error) => unreached(error ?? cut ?? new Unreachable()),
});

async function begin() {
  rememberedSpeed(player);
  me = await login((text) => ($("status").textContent = text));
  offset = me.now - Date.now() / 1000;
  outbox = new Outbox(me.run, me.labeller, {
    received(item, receipt) {
      reached();
      if (item.path === "/api/answer") newest.stored(receipt.seq, item.body.token);
      if (receipt.status === "conflict") toast("That pair already had an answer of yours, which stays");
      if (item.path === "/api/edit") newest.seq = null;
      if (outbox.added > refusedAfter) refusal = ""; // they have gone on
      if (pairs.list.length < 4 || item.path === "/api/edit") pairs.fill();
      if (pairs.away === "done") news.ask(); // how many labels there are now, which a claim would have said
      side.recent();
    },
    refused(item, error) {
      refusal = `An answer could not be stored: ${error.message.replace(/\.?$/, ".")}`;
      refusedAfter = outbox.added;
      store.set(`refused/${me.run}/${item.body.client_id}`, JSON.stringify({ ...item, error: error.message }));
      pairs.fill();
    },
    changed() {
      showBanner();
      showStatus();
    },
  });
  pairs = new Pairs(outbox, {
    changed() {
      show();
      showStatus();
    },
    status: (next) => takeStatus(next, false), // it comes with a claim: what that did not bring is for others
    broken: (why) => toast(`A pair cannot be shown, and is left out: ${why}`),
    lost(error) {
      lost = error;
      showBanner();
    },
  });
  newest = new Undo(outbox, pairs);
  earlier = new Earlier(outbox, show);
  side = new Side((row) => earlier.open(row));
  gallery = new Gallery((row) => earlier.open(row));
  tabs = new Tabs(me, { heard: fromOtherTab, renamed: () => leave().then(() => location.reload()) });
  listen();
  watchIdle(IDLE_MINUTES, nobodyIsHere);
  if (me.tour && !hadTour(me.labeller)) showRound();
  show();
  outbox.flush();
  news.follow();
  await pairs.fill();
  side.curves();
  side.recent();
}

begin();
