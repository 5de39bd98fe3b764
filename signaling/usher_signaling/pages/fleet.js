// The fleet page: reads /v1/fleet every second and shows it.
import { readFleet } from "./api.js";
import { keepKey, storedKey } from "./key.js";
import { askForKey, hideProblem, showProblem } from "./view.js";

const EVERY_MS = 1000;

const $ = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");

function cell(content, className = "") {
  const made = document.createElement("td");
  if (className) made.className = className;
  made.append(content);
  return made;
}

function tag(text, kind = "") {
  const made = document.createElement("span");
  made.className = `tag ${kind}`;
  made.textContent = text;
  return made;
}

function row(name, cells) {
  const made = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.className = "route";
  head.textContent = name;
  made.append(head, ...cells);
  return made;
}

const known = (value, text = (v) => count.format(v)) => (value === null || value === undefined ? "–" : text(value));

function transceiver({ route, region, live, placeable, draining, sessions, max_sessions, reported_s }) {
  const full = sessions !== null && sessions >= max_sessions;
  const state = !live && !draining ? tag("silent", "bad") : draining ? tag("draining", "bad") : !placeable ? tag("closed") : full ? tag("full", "bad") : tag("live", "good");
  const meter = document.createElement("meter");
  Object.assign(meter, { min: 0, max: max_sessions ?? 1, value: sessions ?? 0 });
  meter.setAttribute("aria-label", `sessions of ${route}`);
  return row(route, [cell(region || "–"), cell(state), cell(known(sessions, (v) => `${v} of ${max_sessions}`)), cell(meter, "gauge"), cell(known(reported_s, (v) => `${v.toFixed(1)} s ago`))]);
}

function relay({ address, ready, reason, flows, packets, drops }) {
  return row(address, [cell(ready ? tag("ready", "good") : tag(reason || "not ready", "bad")), cell(known(flows)), cell(known(packets)), cell(known(drops))]);
}

function showTables(known) {
  for (const card of document.querySelectorAll("main > .card")) card.hidden = !known;
}

/** Only what is new: a screen reader reads out each change. */
function say(status) {
  if ($("status").textContent !== status) $("status").textContent = status;
}

function show({ transceivers, relays }) {
  $("transceivers").replaceChildren(...transceivers.map(transceiver));
  $("relays").replaceChildren(...relays.map(relay));
  $("no-transceivers").hidden = transceivers.length > 0;
  $("no-relays").hidden = relays.length > 0;
  const sessions = transceivers.reduce((sum, { sessions: held }) => sum + (held ?? 0), 0);
  document.body.dataset.phase = "live";
  say(`${sessions} ${sessions === 1 ? "call" : "calls"}`);
  hideProblem();
  askForKey(false);
  showTables(true);
}

function fail(problem) {
  const needsKey = ["key-needed", "key-refused"].includes(problem.code);
  showProblem(problem);
  if (problem.code === "key-needed") hideProblem(); // the form says it
  if (needsKey && $("key-form").hidden) askForKey(true);
  if (needsKey) showTables(false); // else the last numbers stay
  document.body.dataset.phase = needsKey ? "locked" : "failed";
  say(needsKey ? "API key needed" : problem.code === "network" ? "Out of reach" : "Refused");
  return !needsKey;
}

let next = 0;

async function look() {
  let goOn = true;
  try {
    show(await readFleet(storedKey()));
  } catch (problem) {
    goOn = fail(problem);
  }
  clearTimeout(next);
  if (goOn) next = setTimeout(look, EVERY_MS);
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key"));
  look();
});

look();
