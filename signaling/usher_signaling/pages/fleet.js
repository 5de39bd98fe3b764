// The fleet page: reads /v1/fleet every second and shows it.
import { readFleet } from "./api.js";
import { keepKey, storedKey } from "./key.js";
import { askForKey, hideProblem, showProblem } from "./view.js";

const EVERY_MS = 1000;

const $ = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");

/** On a phone the label stands beside its value, in place of the head. */
function cell(label, content) {
  const made = document.createElement("td");
  made.dataset.label = label;
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
  const gauge = cell("", meter);
  gauge.className = "gauge";
  return row(route, [
    cell("Region", region || "–"),
    cell("State", state),
    cell("Sessions", known(sessions, (v) => `${v} of ${max_sessions}`)),
    gauge,
    cell("Reported", known(reported_s, (v) => `${v.toFixed(1)} s ago`)),
  ]);
}

function relay({ address, ready, reason, flows, packets, drops }) {
  const state = ready ? tag("ready", "good") : tag(reason || "not ready", "bad");
  return row(address, [cell("State", state), cell("Flows", known(flows)), cell("Packets", known(packets)), cell("Dropped", known(drops))]);
}

function showTables(known) {
  for (const card of document.querySelectorAll("main > section")) card.hidden = !known;
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
