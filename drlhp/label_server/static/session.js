// Who labels: from the link's token to a cookie, and names.

import { Refused, call, store } from "./api.js";
import { askName, askToken, inLink } from "./dialogs.js";

/** Who we are: from the link's token, else from the cookie, else by asking; `say` tells what is waited for. */
export async function login(say) {
  let [token, invited] = inLink(location.hash) ?? [];
  let name = invited ?? store.get("nickname");
  if (token) history.replaceState(null, "", "/"); // not to be seen, copied or kept as a bookmark
  for (;;) {
    try {
      if (!token) return await call("GET", "/api/me");
      const reply = await call("POST", "/api/login", name ? { token, labeller: name } : { token });
      if (reply.labeller) {
        if (name && !invited) store.set("nickname", name);
        return reply;
      }
      name = await askName();
    } catch (error) {
      if (!(error instanceof Refused)) {
        say("The server does not answer; trying again…");
        await new Promise((resolve) => setTimeout(resolve, 1000));
      } else if (token && name && error.status === 422) {
        alert(error.message);
        name = await askName();
      } else {
        [token, invited] = await askToken(token ? error.message : "");
        name = invited ?? name;
      }
    }
  }
}

/** Takes another name; `flush` sends what waits in this browser under the one that there is, by which alone it may,
 *  `leave` gives its pairs back, `goOn` takes pairs again, and `told` tells the other tabs. */
export async function rename(me, { flush, leave, goOn, told }) {
  const name = await askName(me.labeller);
  if (!name || name === me.labeller) return;
  if (!(await flush())) return alert("Not yet: answers of yours are still on their way. Try again when they have arrived.");
  await leave();
  try {
    await call("POST", "/api/name", { labeller: name });
  } catch (error) {
    goOn();
    return alert(error.message);
  }
  told(name);
  store.set("nickname", name);
  location.reload();
}

export async function invite() {
  const name = prompt("A nickname for whom you invite:")?.trim();
  if (!name) return;
  try {
    const { labeller, token, tunnel } = await call("POST", "/api/invite", { labeller: name });
    prompt("Send this link; it lets in nobody but them:", `${location.origin}/#t=${token}&n=${encodeURIComponent(labeller)}`);
    if (tunnel) prompt("The link is good on the run’s own machine alone. On another computer this comes first, and goes on running:", tunnel);
  } catch (error) {
    alert(error.message);
  }
}
