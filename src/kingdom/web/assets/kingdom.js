// The script of every page in the frame: live updates, acts and keys. The server renders the pages.
"use strict";

const body = document.body;
const channel = new BroadcastChannel("kingdom");
const BEAT_MS = 10000, SILENT_MS = 35000, SETTLE_MS = 250, PAUSE_MIN_MS = 1000, PAUSE_MAX_MS = 10000, MESSAGE_MS = 6000, EMPTY_MS = 3000;

const find = (selector, within = document) => within.querySelector(selector);
const every = (selector, within = document) => [...within.querySelectorAll(selector)];
const sequence = (cursor) => Number((cursor || "").split(".")[1] || 0);

// Times.

function span(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

const TIMES = {
  ago: (at, now) => `${span(now - at)} ago`,
  since: (at, now) => span(now - at),
  left: (at, now) => (at > now ? `${span(at - now)} left` : "time is over"),
  clock: (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false }),
};

function tellTimes(within = document) {
  for (const each of every("time[data-time]", within)) {
    const words = TIMES[each.dataset.time](Date.parse(each.dateTime) / 1000, Date.now() / 1000);
    if (each.textContent !== words) each.textContent = words;
  }
}

// Patching.

const KEPT = new Set(["open", "data-loaded", "data-failed", "hidden"]);

// Change `old` into `fresh` with as few changes as possible, so that focus, scrolling and typed text stay.
function patch(old, fresh) {
  if (old.isEqualNode(fresh) || (old.dataset && "keep" in old.dataset)) return;
  if (old.nodeName !== fresh.nodeName || old.nodeType !== Node.ELEMENT_NODE) return old.replaceWith(fresh);
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name) && name !== "disabled") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !KEPT.has(name) && name !== "disabled") old.setAttribute(name, value);
  }
  if (old.nodeName !== "TEXTAREA") patchChildren(old, fresh);
}

function patchChildren(old, fresh) {
  const known = new Map([...old.children].filter((each) => each.id).map((each) => [each.id, each]));
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const same = child.id ? known.get(child.id) : place && !place.id && place.nodeName === child.nodeName ? place : null;
    if (!same) {
      old.insertBefore(child, place);
      continue;
    }
    if (same === place) place = place.nextSibling;
    else old.insertBefore(same, place);
    patch(same, child);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// Refreshing.

// `cursor` is the position in the log up to which this page is known to be current.
let cursor = body.dataset.cursor;
let paused = false, changed = false, refreshing = false, timer = 0, pause = SETTLE_MS, missed = 0;

async function refresh() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (response.status === 401) return location.assign("/sign-in");
  // After an error of the server, the page is loaded again.
  if (response.status >= 500) throw new Error(`the server answered ${response.status}`);
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!find("#main", fresh)) return;
  cursor = fresh.body.dataset.cursor;
  document.title = fresh.title;
  tellTimes(fresh);
  patch(find("#pages"), find("#pages", fresh));
  patch(find("#main"), find("#main", fresh));
  for (const each of every("[data-reload][data-loaded], [data-failed], [data-loaded]:has([data-empty])")) {
    delete each.dataset.loaded;
  }
  prepare();
}

function needRefresh() {
  changed = true;
  if (paused) {
    missed += 1;
    return showState();
  }
  if (document.hidden || refreshing || timer) return;
  timer = setTimeout(refreshNow, pause);
}

async function refreshNow() {
  clearTimeout(timer);
  timer = 0;
  refreshing = true;
  changed = false;
  const began = performance.now();
  try {
    await refresh();
    // A busy court must not keep a browser busy.
    pause = Math.min(PAUSE_MAX_MS, Math.max(PAUSE_MIN_MS, 4 * (performance.now() - began)));
  } catch {
    changed = true;
    pause = PAUSE_MAX_MS;
  }
  refreshing = false;
  if (changed) needRefresh();
}

// The live stream: one per browser. The tab with the lock reads it and tells the others.

let source = null, streamed = cursor, state = "reconnecting", heardAt = Date.now();

function hear({ cursor: at, before, about }) {
  heardAt = Date.now();
  if (sequence(at) <= sequence(cursor)) return;
  const gap = sequence(before) > sequence(cursor);
  cursor = at;
  const own = body.dataset.about.split(" ").filter(Boolean);
  if (gap || !own.length || own.includes(about)) needRefresh();
}

function tell(kind, more = {}) {
  const message = { kind, state, cursor: streamed, ...more };
  channel.postMessage(message);
  receive(message);
}

function receive({ kind, state: told, ...message }) {
  heardAt = Date.now();
  if (kind === "ask") return source && tell("beat");
  state = told;
  showState();
  if (kind === "reset") {
    cursor = message.cursor;
    needRefresh();
  } else if (kind === "entry") hear(message);
  else if (sequence(message.cursor) > sequence(cursor)) hear({ ...message, before: message.cursor });
}

function openStream() {
  source?.close();
  streamed = cursor;
  source = new EventSource(`/api/v1/stream?after=${encodeURIComponent(cursor)}`);
  source.onopen = () => { state = "live"; tell("beat"); };
  source.onerror = () => {
    state = "reconnecting";
    tell("beat");
    if (source?.readyState === EventSource.CLOSED) reopen();
  };
  source.addEventListener("entry", (event) => {
    const { cursor: at, aggregateId: about } = JSON.parse(event.data), before = streamed;
    streamed = at;
    tell("entry", { cursor: at, before, about });
  });
  source.addEventListener("reset", (event) => {
    streamed = JSON.parse(event.data).cursor;
    tell("reset");
  });
}

async function reopen() {
  const response = await fetch("/api/v1/me").catch(() => null);
  if (response?.status === 401) return location.assign("/sign-in");
  setTimeout(() => source && openStream(), 2000);
}

function lead(options = {}) {
  // Without a secure context there are no locks, and every tab has a stream of its own.
  if (!navigator.locks) return openStream();
  navigator.locks
    .request("kingdom-stream", options, () => { openStream(); return new Promise(() => {}); })
    .catch(() => { source?.close(); source = null; lead(); });
}

function showState() {
  const button = find("#live");
  if (!button) return;
  const shown = paused ? "paused" : state;
  const words = { live: "Live", reconnecting: "Reconnecting", paused: missed ? `Paused, ${missed} new` : "Paused" };
  button.dataset.state = shown;
  button.firstElementChild.textContent = words[shown];
  button.setAttribute("aria-pressed", String(paused));
}

function togglePause() {
  paused = !paused;
  missed = 0;
  showState();
  if (!paused) refreshNow();
}

// Acts.

let messageTimer = 0;

function say(words, isError = false) {
  const message = find("#message");
  message.textContent = words;
  message.className = isError ? "error" : "";
  clearTimeout(messageTimer);
  if (!isError) messageTimer = setTimeout(() => { message.textContent = ""; }, MESSAGE_MS);
}

// The same key is sent until an answer arrives, so that an act whose answer is lost happens only once.
const keys = new WeakMap();

function keyOf(element, url) {
  const numbers = crypto.getRandomValues(new Uint32Array(4));
  // Another act of the same element, such as Cancel after Pause, needs another key.
  if (keys.get(element)?.url !== url) keys.set(element, { url, key: [...numbers].map((each) => each.toString(16)).join("-") });
  return keys.get(element).key;
}

async function post(url, content, key) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": key },
    body: JSON.stringify(content),
  });
  const answer = await response.json();
  return { ok: response.ok, answer, words: response.ok ? "" : `${answer.message} (${answer.next})` };
}

async function act(element, content) {
  const buttons = element.matches("button") ? [element] : every("button", element);
  for (const each of buttons) each.disabled = true;
  try {
    const { ok, answer, words } = await post(element.dataset.act, content, keyOf(element, element.dataset.act));
    keys.delete(element);
    say(ok ? tellAnswer(element.dataset.done || "Done.", answer) : words, !ok);
    if (ok && element.dataset.rows) showRows(element, answer[element.dataset.rows]);
    if (ok) element.closest("dialog")?.close();
    await refreshNow();
  } catch {
    say("The server cannot be reached. Press again: it happens only once.", true);
  } finally {
    for (const each of buttons) each.disabled = false;
  }
}

// `{name}` in the words of an act is a value of its answer, or the length of a list.
function tellAnswer(words, answer) {
  return words.replace(/\{(\w+)\}/g, (_, name) => (Array.isArray(answer[name]) ? answer[name].length : answer[name] ?? ""));
}

// Show a list of an answer as a table. Everything in it is text.
function showRows(element, rows) {
  const columns = element.dataset.columns.split(" "), table = document.createElement("table");
  table.className = "card";
  const headings = table.createTHead().insertRow(), content = table.createTBody();
  for (const name of columns) {
    headings.append(Object.assign(document.createElement("th"), { scope: "col", textContent: name.replace("_", " ") }));
  }
  for (const row of rows) {
    const line = content.insertRow();
    for (const name of columns) line.insertCell().textContent = [row[name] ?? "none"].flat().join(", ") || "none";
  }
  find(`#${element.dataset.into}`).replaceChildren(...(rows.length ? [table] : []));
}

function contentOf(form) {
  const content = JSON.parse(form.dataset.body || "{}");
  for (const field of form.elements) {
    if (field.type === "radio" || field.type === "checkbox") {
      if (field.checked) Object.assign(content, JSON.parse(field.dataset.body || "{}"));
    } else if (field.name && field.type === "number") content[field.name] = field.valueAsNumber;
    else if (field.name) content[field.name] = "json" in field.dataset ? JSON.parse(field.value) : field.value;
  }
  return content;
}

async function actOnChosen(button) {
  const chosen = every("input[data-choose]:checked");
  if (!chosen.length) return say("Choose runs first.", true);
  let done = 0;
  for (const box of chosen) {
    const result = find("[data-result]", box.closest("[data-row]"));
    const url = `/api/v1/runs/${encodeURIComponent(box.value)}/${button.dataset.all}`;
    result.textContent = `${button.dataset.verb} …`;
    try {
      const { ok, words } = await post(url, {}, keyOf(box, url));
      keys.delete(box);
      done += ok;
      result.textContent = ok ? button.dataset.done : words;
      result.className = ok ? "outcome good" : "outcome bad";
      box.checked = !ok;
    } catch {
      result.textContent = "The server cannot be reached. Try again: it happens only once.";
    }
  }
  say(`${button.dataset.done} ${done} of ${chosen.length}.`, done < chosen.length);
  needRefresh();
}

// Parts that load later, and transcripts that grow.

let loads = 0;

async function load(element) {
  if (element.dataset.loaded || (element.nodeName === "DETAILS" && !element.open)) return;
  const turn = (element.dataset.loaded = String(++loads));
  const place = find(".loaded", element) || element;
  try {
    const response = await fetch(element.dataset.load);
    const text = response.ok ? await response.text() : (await response.json()).message;
    // A later load has begun, so this answer is old.
    if (element.dataset.loaded !== turn) return;
    element.toggleAttribute("data-failed", !response.ok);
    if (!response.ok) place.textContent = text;
    else setContent(place, text);
    if (find("[data-empty]", place)) setTimeout(() => reload(element), EMPTY_MS);
    prepare();
  } catch {
    place.textContent = "The server cannot be reached. Load this page again.";
  }
}

function reload(element) {
  delete element.dataset.loaded;
  if (element.isConnected && !document.hidden) load(element);
}

function setContent(place, text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  place.replaceChildren(...fresh.body.childNodes);
  tellTimes(place);
}

async function follow(list) {
  const again = (delay) => setTimeout(() => follow(list), delay);
  if (!list.isConnected) return;
  if (paused || document.hidden) return again(1000);
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  try {
    const response = await fetch(`${list.dataset.follow}&after=${list.dataset.after}`, { headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    const part = find("[data-after]", fresh);
    if (!response.ok || !part) return again(5000);
    list.append(...part.childNodes);
    list.dataset.after = part.dataset.after || list.dataset.after;
    tellTimes(list);
    applyFilter();
    // If the reader has scrolled up, new lines do not scroll the page.
    if (atEnd && !location.hash) list.scrollTop = list.scrollHeight;
    if (location.hash) showTarget();
    if (part.dataset.newest !== list.dataset.newest && !location.search.includes("soldier=")) {
      // Another agent has started: show its session.
      return reload(list.closest("[data-load]"));
    }
    if (!part.dataset.over) again(part.dataset.more ? 0 : 1000);
  } catch {
    again(3000);
  }
}

// Keys and clicks.

function move(by) {
  const rows = every("[data-row]").filter((each) => !each.hidden && find("[data-open]", each));
  const here = rows.findIndex((each) => each.contains(document.activeElement));
  const row = rows[Math.min(rows.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  const link = row && find("[data-open]", row);
  link?.focus();
  row?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  "/": () => find("[data-filter]")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  " ": togglePause,
  "?": () => find("#help").showModal(),
};

function applyFilter() {
  for (const input of every("[data-filter]")) {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of every(input.dataset.filter)) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      shown += !row.hidden;
    }
    const count = find(`[data-count="${input.id}"]`);
    if (count) count.textContent = words.length ? `${shown} found` : "";
  }
}

// A link to a line works even if the line is loaded after the page.
let shownTarget = "";

function showTarget() {
  const target = location.hash && shownTarget !== location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  shownTarget = location.hash;
  target.scrollIntoView({ block: "center" });
  // The browser marks a target only when the address changes.
  location.replace(location.hash);
}

function prepare() {
  tellTimes();
  applyFilter();
  for (const each of every("[data-load]:not([data-loaded])")) load(each);
  for (const each of every("[data-follow]:not([data-followed])")) {
    each.dataset.followed = "yes";
    if (!location.hash) each.scrollTop = each.scrollHeight;
    follow(each);
  }
  showTarget();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing) {
    if (typing.dataset.filter) typing.value = "";
    applyFilter();
    return typing.blur();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
  if (event.key === " " && event.target.closest("button, a, summary, input, label")) return;
  if (!KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "live") togglePause();
  else if (button.dataset.opens) find(`#${button.dataset.opens}`).showModal();
  else if (button.dataset.closes !== undefined) button.closest("dialog").close();
  else if (button.dataset.all) actOnChosen(button);
  else if (button.dataset.act) act(button, JSON.parse(button.dataset.body || "{}"));
  else if ("signOut" in button.dataset) fetch("/api/v1/session", { method: "DELETE" }).then(() => location.assign("/sign-in"));
});

document.addEventListener("submit", (event) => {
  if (!event.target.dataset.act) return;
  event.preventDefault();
  let content;
  try {
    content = contentOf(event.target);
  } catch (error) {
    return say(`This is not JSON: ${error.message}.`, true);
  }
  act(event.target, content);
});

document.addEventListener("input", (event) => { if (event.target.dataset.filter) applyFilter(); });
document.addEventListener("change", (event) => {
  if (event.target.dataset.chooseAll !== undefined) {
    for (const box of every("[data-row]:not([hidden]) input[data-choose]")) box.checked = event.target.checked;
  }
});

// A folded text must be opened before it can be approved.
document.addEventListener("toggle", (event) => {
  if (!event.target.open) return;
  if (event.target.dataset.load) load(event.target);
  for (const waiting of every(`[data-after="${CSS.escape(event.target.id)}"]`)) {
    for (const each of every("button", waiting)) each.disabled = false;
    waiting.parentElement.querySelector(".until")?.remove();
  }
}, true);

document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) refreshNow(); });
window.addEventListener("pageshow", (event) => { if (event.persisted) refreshNow(); });
window.addEventListener("online", () => refreshNow());
channel.onmessage = ({ data }) => receive(data);
setInterval(() => {
  tellTimes();
  if (source) tell("beat");
  else if (!document.hidden && Date.now() - heardAt > SILENT_MS) lead({ steal: true });
}, BEAT_MS);

prepare();
find(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
if (cursor) {
  lead();
  channel.postMessage({ kind: "ask" });
}
