// The secret is in the fragment, which browsers do not send, so access logs and link previews never contain it.
const say = (text) => { document.getElementById("state").textContent = text; };
const secret = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (secret) {
  fetch("/api/v1/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ secret }),
  })
    .then(async (response) => {
      const answer = await response.json();
      say(response.ok ? `Signed in as ${answer.name}.` : answer.message);
      if (response.ok) location.replace("/");
    })
    .catch(() => say("The server cannot be reached. Open the link again."));
} else {
  say("Open the link of an invite: `kingdom web invite NAME` prints one.");
}
