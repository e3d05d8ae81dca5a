// What the page says about the run, about trouble and about waiting, as text.

import { LOGGED_OUT, Refused } from "./api.js";
import { duration, number } from "./side.js";

const LEAST_PACES = 5; // answers, before their pace says how long the rest takes

/** Returns the line of status: the labels with those on their way, the pace in seconds, and the open pairs. */
export function statusLine(status, { labels, paces, open }) {
  const median = [...paces].sort((a, b) => a - b)[Math.floor(paces.length / 2)];
  const parts = [`${labels.toLocaleString("en")}${status.goal ? ` / ${status.goal.toLocaleString("en")}` : ""} labels`];
  if (median !== undefined) parts.push(`${median.toFixed(1)} s per answer`);
  if (status.goal > labels && paces.length >= LEAST_PACES) parts.push(`${duration((status.goal - labels) * median)} left at this pace`);
  parts.push(`${open} ${open === 1 ? "pair" : "pairs"} waiting`);
  if (status.agent_steps !== null) parts.push(`agent at ${number(status.agent_steps)} steps`);
  if (status.initial_labels > labels) parts.push(`training starts at ${status.initial_labels.toLocaleString("en")}`);
  if (status.trouble) parts.push(`trouble: ${status.trouble}`);
  return parts.join(" · ");
}

/**
 * Returns why nothing gets through now, and what becomes of the answers; empty while all is well.
 * kept: answers that wait in this browser; lost: why no pairs come; troubles: all errors, those of `lost` included;
 * pair: whether one is on screen.
 */
export function troubleWords(status, { kept, lost, troubles, pair }) {
  const answers = kept === 1 ? "1 answer is" : `${kept} answers are`;
  if (troubles.some((error) => error.status === 401)) return kept ? `${LOGGED_OUT} ${answers} kept in this browser until then.` : LOGGED_OUT;
  if (lost instanceof Refused) return lost.message;
  const done = !kept && status?.goal && status.labels >= status.goal; // then the run may well have ended
  if (!troubles.length || done) return "";
  if (status?.ended) return `${status.ended}${kept ? ` ${answers} still kept in this browser, for when it goes on.` : ""}`;
  const reason = troubles.find((error) => error.reason)?.reason.replace(/\.?$/, ".") ?? "Offline.";
  return `${reason}${kept ? ` ${answers} kept in this browser.` : ""} Trying again by itself${pair ? "; you can go on" : ""}.`;
}

/** Returns why there is no pair to show. idleMinutes: after which the break began by itself, or 0. */
export function waitingWords(status, { away, idleMinutes, touch, trouble, loading, none }) {
  if (away) return `${idleMinutes ? `Nobody has touched this page for ${idleMinutes} minutes. ` : ""}Your pairs have gone to whoever else labels. Press ${touch ? "" : "P, or "}the button to go on.`;
  if (trouble) return trouble;
  if (loading) return "Loading the clips…";
  if (!status?.reason && status?.ready && none) return "The pairs that are left wait for other people’s answers. New ones will appear here by themselves.";
  return status?.reason || "Getting the next pair…";
}
