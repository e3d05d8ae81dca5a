// The page: shows one pair after another and takes the answers. What it holds can be lost at any moment without
// loss: answers are in the outbox, pairs are on lease at the server.

import { LOGGED_OUT, Refused, Unreachable, call, randomId, store } from "./api.js";
import { Player, loadClip } from "./clips.js";
import { Gallery, anyOpen, ask, askNote, showHelp, showQuality } from "./dialogs.js";
import { keyAction } from "./keys.js";
import { Outbox } from "./outbox.js";
import { Pairs } from "./pairs.js";
import { invite, login, rename } from "./session.js";
import { Side, duration, number, words } from "./side.js";
import { chime, soundBox } from "./sound.js";
import { Tabs } from "./tabs.js";
import { swipes } from "./touch.js";

const $ = (id) => document.getElementById(id);
const GUARD_MS = 250; // after a pair appears: presses that were meant for the one before
const FLASH_MS = 150;
const TOAST_MS = 4000, TOAST_MS_PER_LETTER = 60; // to be seen, and to be read without haste
const POLL_MS = 2000, HIDDEN_POLL_MS = 5000;
const IDLE_MINUTES = 3; // after which a page that nobody touches takes a break
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const TOUCH = matchMedia("(hover: none) and (pointer: coarse)");
const PACE_OVER = 20, LEAST_PACES = 5; // newest answers; so many before they say how long the rest takes
const SAID = { left: "Left", right: "Right", equal: "Equal", incomparable: "Can’t tell" };
let me, status, outbox, pairs, side, gallery, tabs;
let shown = null; // what is on screen: a pair of `pairs`, or {row, clips} of an answer to change
let shownClock = 0, replays = 0, pressedAt = null;
let offset = 0; // server's clock minus ours, seconds
let newestSeq = null, newestToken = null, lost = null, cut = null, refusal = "", refusedAfter = 0, relabelling = null;
const paces = [];
const now = () => Date.now() / 1000 + offset;

const player = new Player($("left"), $("right"), {
  frame(index, frames) {
    // To move the slider is a quarter of what a frame costs: while the clips play it follows in larger steps.
    if (!player.playing || index < 2 || index % 4 === 0 || index === frames - 1) showFrame();
    if (pressedAt === null || index === 0) return;
    afterRefresh("pair-moving", 1);
    pressedAt = null;
  },
});

function showFrame() {
  const scrub = $("scrub");
  scrub.max = player.frames - 1;
  scrub.value = player.index;
  scrub.setAttribute("aria-valuetext", `frame ${player.index + 1} of ${player.frames}`);
}

/**
 * For measurements: tells how long ago the key was pressed, when what is drawn now is on screen: the first callback
 * comes before that, the second after it. For what an animation frame's own callback draws, the first one does.
 */
function afterRefresh(name, refreshes) {
  const pressed = pressedAt;
  const tell = (left) => left
    ? requestAnimationFrame(() => tell(left - 1))
    : document.dispatchEvent(new CustomEvent(name, { detail: { ms: performance.now() - pressed } }));
  tell(refreshes);
}

// What is on screen

function show() {
  const wanted = relabelling ?? (pairs.away ? null : pairs.first);
  document.body.classList.toggle("waiting", !wanted);
  $("waiting").hidden = Boolean(wanted);
  for (const button of document.querySelectorAll(".answer")) button.disabled = !wanted;
  $("stage").dataset.pair = wanted?.lease?.comparison_id ?? wanted?.row?.comparison_id ?? "";
  if (wanted && wanted !== shown) {
    shown = wanted;
    shownClock = performance.now();
    replays = 0;
    player.show(...wanted.clips);
    if (pressedAt !== null) afterRefresh("pair-drawn", 2);
  } else if (!wanted) {
    shown = null;
    player.clear();
    showWaiting();
  }
  showMarks();
}

/** Pairs that may be had: none where those that are left are for others. */
const ready = () => (pairs.none ? 0 : status.ready);

function showWaiting() {
  const loading = pairs.list.length > 0 && !pairs.away;
  const trouble = troubleText();
  $("resume").hidden = !pairs.away;
  $("waiting-title").textContent = pairs.away ? "Taking a break" : !trouble && (loading || !status || ready()) ? "One moment" : "No pair to show right now";
  let reason = status?.reason || "Getting the next pair…";
  if (pairs.away) reason = `${nobody ? `Nobody has touched this page for ${IDLE_MINUTES} minutes. ` : ""}Your pairs have gone to whoever else labels. Press ${TOUCH.matches ? "" : "P, or "}the button to go on.`;
  else if (trouble) reason = trouble;
  else if (loading) reason = "Loading the clips…";
  else if (!status?.reason && status?.ready && pairs.none) reason = "The pairs that are left wait for other people’s answers. New ones will appear here by themselves.";
  if ($("waiting-reason").textContent !== reason) $("waiting-reason").textContent = reason;
  $("waiting-trainer").textContent = status?.trainer && !pairs.away ? `The run: ${status.trainer}` : "";
}

function showMarks() {
  const row = relabelling?.row;
  $("relabel").hidden = !row;
  for (const button of document.querySelectorAll(".answer")) {
    if (row) button.setAttribute("aria-pressed", String(button.dataset.choice === row.choice));
    else button.removeAttribute("aria-pressed");
  }
  document.querySelector("[data-do=flag]").classList.toggle("on", Boolean(shown?.flag));
  $("pause").querySelector("span").textContent = player.playing ? "Pause" : "Play";
}

function showStatus() {
  if (!status) return;
  const waiting = outbox.items().filter(({ path, body }) => path === "/api/answer" && body.choice !== "incomparable").length;
  const labels = status.labels + waiting, median = [...paces].sort((a, b) => a - b)[Math.floor(paces.length / 2)];
  const parts = [`${labels.toLocaleString("en")}${status.goal ? ` / ${status.goal.toLocaleString("en")}` : ""} labels`];
  if (median !== undefined) parts.push(`${median.toFixed(1)} s per answer`);
  if (status.goal > labels && paces.length >= LEAST_PACES) parts.push(`${duration((status.goal - labels) * median)} left at this pace`);
  const open = ready() + pairs.list.length;
  parts.push(`${open} ${open === 1 ? "pair" : "pairs"} waiting`);
  if (status.agent_steps !== null) parts.push(`agent at ${number(status.agent_steps)} steps`);
  if (status.initial_labels > labels) parts.push(`training starts at ${status.initial_labels.toLocaleString("en")}`);
  if (status.trouble) parts.push(`trouble: ${status.trouble}`);
  $("status").textContent = parts.join(" · ");
  $("start").hidden = !status.may_start;
  $("progress").hidden = !status.goal;
  $("progress").value = status.goal ? Math.min(1, labels / status.goal) : 0;
  $("task").textContent = status.task ? `Which clip is better? ${status.task}` : "Which clip shows the better behaviour?";
  const idle = !shown || document.visibilityState !== "visible";
  document.title = idle && ready() ? `(${ready()}) pairs ready` : "Which clip is better?";
}

/** Why nothing gets through now, and what becomes of the answers; empty while all is well. */
function troubleText() {
  const kept = outbox.items().length, troubles = [outbox.trouble, lost, cut].filter(Boolean);
  const answers = kept === 1 ? "1 answer is" : `${kept} answers are`;
  if (troubles.some((error) => error.status === 401)) return kept ? `${LOGGED_OUT} ${answers} kept in this browser until then.` : LOGGED_OUT;
  if (lost instanceof Refused) return lost.message;
  const done = !kept && status?.goal && status.labels >= status.goal; // then the run may well have ended
  if (!troubles.length || done) return "";
  if (status?.ended) return `${status.ended}${kept ? ` ${answers} still kept in this browser, for when it goes on.` : ""}`;
  const reason = troubles.find((error) => error.reason)?.reason.replace(/\.?$/, ".") ?? "Offline.";
  return `${reason}${kept ? ` ${answers} kept in this browser.` : ""} Trying again by itself${pairs.first ? "; you can go on" : ""}.`;
}

function showBanner() {
  const trouble = troubleText(), text = trouble.startsWith(LOGGED_OUT) ? trouble : refusal || trouble;
  $("banner").hidden = !text;
  if ($("banner").textContent !== text) $("banner").textContent = text;
  if (!shown) showWaiting();
}

let toasting = null; // the timer of what is told now

function toast(text) {
  $("toast").textContent = text;
  clearTimeout(toasting);
  toasting = setTimeout(() => ($("toast").textContent = ""), TOAST_MS + TOAST_MS_PER_LETTER * text.length);
}

function flash(choice) {
  const sides = { left: ["left"], right: ["right"], equal: ["left", "right"], incomparable: [] }[choice];
  const marked = [...sides.map((name) => $(`${name}-figure`).classList), document.querySelector(`.answer[data-choice=${choice}]`).classList];
  marked.forEach((classes, i) => classes.add(i < sides.length ? "chosen" : "pressed"));
  setTimeout(() => marked.forEach((classes) => classes.remove("chosen", "pressed")), FLASH_MS);
}

// What a person does

function answer(choice) {
  const pair = shown, pressed = performance.now();
  if (!pair || pressed - shownClock < GUARD_MS) return;
  pressedAt = pressed;
  if (relabelling) return changeAnswer(choice);
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
}

function changeAnswer(choice) {
  const { row, flag, note } = relabelling;
  flash(choice);
  const changed = choice !== row.choice || flag !== row.flag || note !== row.note;
  if (changed) outbox.add("/api/edit", { client_id: randomId(), seq: row.seq, choice, flag, note });
  toast(choice === row.choice ? (changed ? "Its note is changed" : "Left as it was") : `Changed from “${words(row.choice)}” to “${words(choice)}”`);
  stopRelabelling();
}

async function relabel(row) {
  // A change that still waits in this browser is what they said last.
  const { choice, flag, note } = outbox.items().findLast(({ body }) => body.seq === row.seq)?.body ?? row;
  row = { ...row, choice, flag, note };
  let clips;
  try {
    clips = await Promise.all([loadClip(row.left), loadClip(row.right)]);
  } catch (error) {
    return toast(`That pair cannot be loaded now: ${error.message}`);
  }
  relabelling = { row, clips, flag: row.flag, note: row.note };
  $("relabel").replaceChildren(document.createTextNode(`Changing an earlier answer. You said: ${words(row.choice)}.`));
  const leave = $("relabel").appendChild(document.createElement("button"));
  leave.type = "button";
  leave.className = "small";
  leave.textContent = "Leave it (Esc)";
  leave.addEventListener("click", stopRelabelling);
  show();
}

function stopRelabelling() {
  relabelling = null;
  show();
}

let undoing = false;
async function undo() {
  if (undoing) return;
  undoing = true;
  try {
    await undoNewest();
  } finally {
    undoing = false;
  }
}

/** Why undo did nothing, in the server's own words where it gave some. */
const notUndone = (error) => (error.reason ? `Not undone: ${error.reason}` : "Offline: undo works again with the connection");

async function undoNewest() {
  if (relabelling) return stopRelabelling();
  const unsent = outbox.takeBack();
  let lease = null, marks = unsent?.body;
  if (unsent) {
    lease = unsent.lease;
  } else {
    if (!(await outbox.flush())) return toast(notUndone(outbox.trouble));
    try {
      ({ lease, ...marks } = await call("POST", "/api/undo", { seq: newestSeq }));
    } catch (error) {
      // The server may have done it all the same: then it hands the pair out again, which must not stay hidden.
      if (newestToken) pairs.forgetAnswered(newestToken);
      if (error.status !== 409) return toast(notUndone(error));
      newestSeq = null; // the next try takes what the server has as the newest
      return toast("Your newest answer is another one now: press U again to undo that");
    }
    newestSeq = null;
    if (!lease) return toast("There is nothing to undo");
  }
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
  if (!shown || relabelling) return;
  const { token } = shown.lease;
  pairs.drop(token);
  show();
  toast("Passed on to somebody else");
  await pairs.release([token]).catch(() => {});
  pairs.fill();
}

async function takeBreak() {
  if (pairs.away) return goOn();
  nobody = false;
  leave();
}

let idle = null; // the timer of a page that nobody touches
let nobody = false; // whether the break began by itself

/** Takes a break when nobody has been here for long: others get the pairs, and clips that nobody sees cost no time. */
function stayAwake() {
  clearTimeout(idle);
  idle = setTimeout(() => {
    stayAwake();
    if (!shown) return;
    nobody = true;
    $("episode").pause();
    leave();
  }, 60000 * IDLE_MINUTES);
}

async function leave() {
  relabelling = null;
  pairs.away = true;
  const tokens = pairs.tokens();
  pairs.list = [];
  show();
  toast("");
  if (tokens.length) await call("POST", "/api/release", { tokens: tokens.slice(0, 8) }).catch(() => {});
}

function goOn() {
  pairs.away = false;
  show();
  pairs.fill();
}

function setSpeed(speed) {
  player.speed = speed;
  $("speed").value = String(speed);
  store.set("speed", String(speed));
}

function changeSpeed(by) {
  const index = SPEEDS.indexOf(player.speed) + by;
  if (SPEEDS[index]) setSpeed(SPEEDS[index]);
  toast(`Speed ${player.speed}×`);
}

async function flag() {
  const pair = shown;
  if (!pair) return;
  await askNote(pair);
  showMarks();
  if (pair.lease) pairs.remember(pair);
  if (pair === shown && pair.flag) toast("Flagged: the note goes with your answer");
}

async function startTraining() {
  const n = (count) => count.toLocaleString("en");
  $("start-text").textContent = `It would start by itself with ${n(status.initial_labels)} labels; now there are ${n(status.labels)}, so that the agent has less to learn from at first.`;
  if ((await ask($("start-dialog"))) !== "start") return;
  try {
    takeStatus(await call("POST", "/api/start", {}));
    toast("Training starts with the labels there are");
  } catch (error) {
    toast(`Training was not started: ${error.message}`);
  }
}

const ACTIONS = {
  undo, skip, flag,
  pause: () => { player.playing = !player.playing; if (player.clips) showFrame(); showMarks(); },
  back: () => { player.step(-1); showMarks(); },
  forward: () => { player.step(1); showMarks(); },
  slower: () => changeSpeed(-1),
  faster: () => changeSpeed(1),
  replay: () => { player.replay(); replays += 1; showMarks(); },
  gallery: () => gallery.show(),
  quality: showQuality,
  help: () => showHelp(me.labeller, status, me.owner),
  break: takeBreak,
  start: () => status?.may_start && startTraining(),
};

function act(name) {
  if (name in SAID) answer(name);
  else if (name === "pause" || name === "back" || name === "forward") player.clips && ACTIONS[name]();
  else ACTIONS[name]();
}

function onKey(event) {
  const name = anyOpen() || event.defaultPrevented ? null : keyAction(event); // prevented: it has closed a dialog
  // A button that has the keyboard would be pressed again and again while Enter is held down.
  if (event.repeat && event.target.tagName === "BUTTON") event.preventDefault();
  if (event.key === "Escape" && relabelling && !anyOpen()) return stopRelabelling();
  if (!name) return;
  event.preventDefault();
  if (event.repeat && name !== "back" && name !== "forward") return;
  if (pairs.away && !relabelling && name in SAID) return goOn();
  act(name);
}

let opener = null; // the button by which the mouse has opened a dialog, which gives the keyboard back to it

function listen() {
  addEventListener("keydown", onKey);
  for (const sign of ["keydown", "pointerdown", "pointermove", "wheel"]) addEventListener(sign, stayAwake, { passive: true });
  addEventListener("hashchange", () => location.hash.startsWith("#t=") && location.reload()); // another link
  document.addEventListener("click", (event) => {
    // A click leaves the keyboard with the page: the next Enter is an answer, not the same button again.
    if (event.detail === 0 || event.target.tagName === "SELECT") return;
    if (anyOpen()) opener = event.target.closest("#tools button, #start") ?? opener;
    else document.activeElement?.blur();
  });
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => { opener?.blur(); opener = null; });
  for (const button of document.querySelectorAll(".answer")) button.addEventListener("click", () => answer(button.dataset.choice));
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
  $("pause").addEventListener("click", () => act("pause"));
  $("resume").addEventListener("click", goOn);
  soundBox($("sound"));
  $("start").addEventListener("click", () => act("start"));
  $("scrub").addEventListener("input", () => { player.seek(Number($("scrub").value)); showMarks(); });
  $("scrub").addEventListener("pointerup", () => $("scrub").blur());
  $("speed").addEventListener("change", () => { setSpeed(Number($("speed").value)); $("speed").blur(); });
  $("rename").addEventListener("click", () => rename(me, { flush: () => outbox.flush(), leave, goOn, told: (name) => tabs.begins(name) }));
  $("invite").addEventListener("click", invite);
  swipes($("stage"), $("swipe-label"), answer);
  addEventListener("pageshow", (event) => event.persisted && pairs.fill());
  document.addEventListener("visibilitychange", () => {
    followEvents();
    showStatus();
    if (document.visibilityState === "visible") pairs.fill();
  });
  addEventListener("pagehide", () => tabs.leave(pairs.tokens()));
}

function fromOtherTab({ answered, undone }) {
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
  if (next.ready > status?.ready) pairs.none = false; // one of the new ones may be for us
  status = next;
  reached();
  offset = next.now - Date.now() / 1000;
  showStatus();
  side.status(next);
  if (mayClaim && woken && document.visibilityState === "visible") pairs.fill();
}

let polling = null; // while events do not come
let events = null, asking = null;

/** The server has answered. */
function reached() {
  cut = null;
  showBanner();
}

function unreached(error) {
  cut = error;
  showBanner();
}

/**
 * Hears of news at once while the page is in front, and else asks: a browser has six connections to a server, for all
 * its tabs together.
 */
function followEvents() {
  events?.close();
  events = null;
  clearInterval(polling);
  polling = null;
  if (document.visibilityState !== "visible") {
    polling = setInterval(askStatus, HIDDEN_POLL_MS);
    return;
  }
  events = new EventSource("/api/events");
  events.onmessage = (event) => {
    takeStatus(JSON.parse(event.data));
    if (outbox.trouble) outbox.flush();
    if (lost) pairs.fill();
  };
  events.onopen = () => { clearInterval(polling); polling = null; };
  events.onerror = () => {
    unreached(cut ?? new Unreachable()); // a server that is dead is noticed by this, long before a request is given up
    polling ??= setInterval(askStatus, POLL_MS);
    askStatus(); // may say why
    if (events?.readyState === EventSource.CLOSED) setTimeout(followEvents, 5000);
  };
}

function askStatus() {
  asking ??= call("GET", "/api/status").then(takeStatus, unreached).finally(() => (asking = null));
}

async function begin() {
  const speed = Number(store.get("speed"));
  setSpeed(SPEEDS.includes(speed) ? speed : 1);
  me = await login((text) => ($("status").textContent = text));
  offset = me.now - Date.now() / 1000;
  side = new Side(relabel);
  gallery = new Gallery(relabel);
  outbox = new Outbox(me.run, me.labeller, {
    received(item, receipt) {
      reached();
      if (item.path === "/api/answer") [newestSeq, newestToken] = [receipt.seq, item.body.token];
      if (receipt.status === "conflict") toast("That pair already had an answer of yours, which stays");
      if (item.path === "/api/edit") newestSeq = null;
      if (outbox.added > refusedAfter) refusal = ""; // they have gone on
      if (pairs.list.length < 4 || item.path === "/api/edit") pairs.fill();
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
  tabs = new Tabs(me, { heard: fromOtherTab, renamed: () => leave().then(() => location.reload()) });
  listen();
  stayAwake();
  show();
  outbox.flush();
  followEvents();
  await pairs.fill();
  side.curves();
  side.recent();
}

begin();
