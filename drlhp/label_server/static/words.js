// What the page says about the run and about trouble, as text.

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
 * pair: whether one is on screen; over: whether nobody is asked any more.
 */
export function troubleWords(status, { kept, lost, troubles, pair, over }) {
  const answers = kept === 1 ? "1 answer is" : `${kept} answers are`;
  if (troubles.some((error) => error.status === 401)) return kept ? `${LOGGED_OUT} ${answers} kept in this browser until then.` : LOGGED_OUT;
  if (lost instanceof Refused) return lost.message;
  if (!troubles.length || (over && !kept)) return ""; // once all is done, the server may well be gone
  if (status?.ended) return `${status.ended}${kept ? ` ${answers} still kept in this browser, for when it goes on.` : ""}`;
  const reason = troubles.find((error) => error.reason)?.reason.replace(/\.?$/, ".") ?? "Offline.";
  return `${reason}${kept ? ` ${answers} kept in this browser.` : ""} Trying again by itself${pair ? "; you can go on" : ""}.${pair || kept ? "" : " If the run has finished, you may close this page."}`;
}
