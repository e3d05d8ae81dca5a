// What stands in the place of a pair: one moment, a break, why there is none, or the end.

const $ = (id) => document.getElementById(id);

/**
 * Shows why there is no pair.
 * away: why none is claimed, as in Pairs; idleMinutes: after which the break began by itself, or 0; loading: whether one
 * is on its way; trouble: why nothing gets through; kept: answers that are not stored yet; none: pairs are for others.
 */
export function showWaiting(status, { away, idleMinutes, touch, loading, trouble, kept, none }) {
  const done = away === "done", soon = loading || !status || (status.ready && !none);
  $("resume").hidden = away !== "break";
  $("sound-label").hidden = done;
  $("waiting-title").textContent =
    done ? "Done, thank you" : away === "break" ? "Taking a break" : !trouble && soon ? "One moment" : "No pair to show right now";
  const reason = reasonWords(status, { away, idleMinutes, touch, loading, trouble, kept, none });
  if ($("waiting-reason").textContent !== reason) $("waiting-reason").textContent = reason; // else it is read out again
  $("waiting-trainer").textContent = status?.trainer && !away ? `The run: ${status.trainer}` : "";
}

function reasonWords(status, { away, idleMinutes, touch, loading, trouble, kept, none }) {
  if (away === "break") return `${idleMinutes ? `Nobody has touched this page for ${idleMinutes} minutes. ` : ""}Your pairs have gone to whoever else labels. Press ${touch ? "" : "P, or "}the button to go on.`;
  if (trouble) return trouble;
  if (away === "done") return doneWords(status, kept);
  if (loading) return "Loading the clips…";
  if (!status?.reason && status?.ready && none) return "The pairs that are left wait for other people’s answers. New ones will appear here by themselves.";
  return status?.reason || "Getting the next pair…";
}

function doneWords({ goal, labels, ended }, kept) {
  if (kept) return "Your last answer is on its way. Please leave this page open until it has arrived.";
  return ended && !(goal && labels >= goal) ? ended : `All ${goal.toLocaleString("en")} labels have been given. You may close this page.`;
}
