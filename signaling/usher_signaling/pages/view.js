// Everything the page shows, by name. No logic of calls in here.
import { inWords } from "./problems.js";

const $ = (id) => document.getElementById(id);
const STOPS = ["browser", "relay", "home", "transceiver", "backend"];
const SPARK_POINTS = 60;

const PHASES = {
  idle: { status: "Ready", action: "Start the call", hint: "Press the button, allow the microphone, and say something." },
  asking: { status: "Asking for the microphone", action: "Cancel", hint: "Your browser asks whether this page may use the microphone." },
  connecting: { status: "Connecting", action: "Cancel", hint: "Setting up the call." },
  live: { status: "In a call", action: "Hang up", hint: "Say something. The server hears you." },
  ended: { status: "Call ended", action: "Call again", hint: "The call has ended. Press the button to call again." },
  locked: { status: "API key needed", action: "Start the call", hint: "This server takes calls from people it knows. Enter your API key below." },
  left: { status: "The server ended the call", action: "Call again", hint: "The server has hung up. Press the button to call again." },
  failed: { status: "Call failed", action: "Try again", hint: "What went wrong, and what to do about it, is said below." },
};

// Below a millisecond browsers' clocks are coarsened on purpose: no false precision.
export const ms = (value) => (value === undefined ? "–" : value < 1 ? "< 1 ms" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);
const percent = (value) => (value === undefined ? "–" : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);

export function showPhase(phase) {
  const { status, action, hint } = PHASES[phase];
  document.body.dataset.phase = phase;
  $("status").textContent = status;
  $("hint").textContent = hint;
  $("talk-label").textContent = action;
  $("talk-caption").textContent = action;
  $("mute").hidden = phase !== "live";
  for (const choice of ["raw", "backend"]) $(choice).disabled = ["asking", "connecting", "live"].includes(phase);
  $("clock").hidden = phase !== "live";
}

export function showHint(text) {
  $("hint").textContent = text;
}

export function showStatus(text) {
  $("status").textContent = text;
}

export function showProblem(error) {
  const { title, advice, detail } = inWords(error);
  $("problem-title").textContent = title;
  $("problem-advice").textContent = advice;
  $("problem-detail").textContent = detail;
  $("problem").dataset.code = error.code ?? "unexpected";
  $("problem").hidden = false;
}

export function hideProblem() {
  $("problem").hidden = true;
}

export function askForKey(show) {
  $("key-form").hidden = !show;
  if (show) $("key").focus();
}

/** names: what a caller may choose. With fewer than two there is nothing to choose. */
export function showBackends(names, chosen) {
  $("backend").replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  $("backend-choice").hidden = names.length < 2;
}

export function offerSideBand(possible) {
  $("side-band").hidden = !possible;
}

export function showSideBand(open) {
  $("side-band").setAttribute("aria-pressed", String(open));
  $("side-band").textContent = open ? "Close the side-band" : "Look on by side-band";
  $("side-view").hidden = !open && $("side-events").childElementCount === 0;
}

export function showCopied(copied) {
  $("copied").textContent = copied ? "Copied." : "Your browser does not allow it here: select the text and copy it.";
}

export function showMuted(muted) {
  $("mute").setAttribute("aria-pressed", String(muted));
  $("mute").querySelector("span").textContent = muted ? "Muted" : "Mute";
}

export function showClock(seconds) {
  $("clock").textContent = `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

/** who: "you" or "reply"; db: dBFS, or null while nothing is measured. */
export function showLevel(who, db) {
  const meter = $(`${who}-level`);
  const silent = db === null || db <= -60;
  const text = db === null ? "–" : silent ? "silent" : `−${Math.abs(Math.round(db))} dB`;
  meter.textContent = text;
  meter.setAttribute("aria-valuenow", String(silent ? -60 : Math.round(db)));
  meter.setAttribute("aria-valuetext", db === null ? "not measured" : text);
}

/** How much the button's ring swells, 0 to 1. */
export function showHalo(amount) {
  document.body.style.setProperty("--reply-loudness", amount.toFixed(2));
}

/** Lights the path up to and with `stop`; null puts all lights out. */
export function lightPath(stop) {
  const stops = [...$("path").children].filter((item) => !item.hidden);
  const lit = stops.findIndex((item) => item.dataset.stop === stop);
  for (const [at, item] of stops.entries()) {
    item.classList.toggle("lit", at <= lit);
    item.classList.toggle("busy", stop !== null && at === lit + 1);
    item.querySelector(".state").textContent = at <= lit ? "connected" : "not connected";
  }
}

/**
 * hops: [{from, to, ms}] as the server names them, ms undefined where not known; none hides the times.
 * A call that enters at the relay of another cluster has an ingress and a home: one stop more.
 */
export function showHops(hops) {
  const home = document.querySelector("#path [data-stop=home]");
  const isTrunk = hops.some(({ to }) => to === "home");
  if (home.hidden === isTrunk) {
    home.hidden = !isTrunk;
    home.classList.toggle("lit", isTrunk && home.previousElementSibling.classList.contains("lit"));
    home.querySelector(".state").textContent = home.classList.contains("lit") ? "connected" : "not connected";
    $("relay-title").textContent = isTrunk ? "Ingress relay" : "Relay";
  }
  for (const stop of ["relay", "home", "transceiver"]) {
    const hop = hops.find(({ to }) => to === stop || (to === "ingress" && stop === "relay"));
    $(`hop-${stop}`).hidden = hop?.ms === undefined;
    $(`hop-${stop}`).textContent = ms(hop?.ms);
  }
}

export function showFact(stop, text) {
  $(`stop-${stop}`).textContent = text;
}

/** Says it where a call is not in the region `asked` for (null: for none). `served`: undefined where the server names none. */
export function showRegions(asked, served) {
  $("elsewhere").hidden = !asked || asked === served;
  $("elsewhere").textContent = `You asked for ${asked}. This call is served in ${served ?? "no region"}.`;
}

export function clearNumbers() {
  showHops([]);
  showRegions(null);
  showFact("browser", "this page");
  for (const stop of STOPS.slice(1)) showFact(stop, "–");
  for (const row of $("timings").children) {
    row.classList.remove("done");
    row.querySelector(".took").textContent = "–";
  }
  for (const id of ["total", "rtt", "jitter", "loss-down", "loss-up"]) $(id).textContent = "–";
  for (const id of ["server-view", "codec"]) $(id).textContent = "";
  for (const line of document.querySelectorAll(".spark polyline")) line.setAttribute("points", "");
  showClock(0);
}

/** stages: [{name, from, to}] in milliseconds since the offer, in order; total: where the last one ends. */
export function showTimings(stages, total) {
  for (const { name, from, to } of stages) {
    const row = $("timings").querySelector(`[data-stage=${name}]`);
    const lane = row.querySelector(".lane i");
    lane.style.setProperty("--from", from / total);
    lane.style.setProperty("--part", (to - from) / total);
    row.querySelector(".took").textContent = ms(to - from);
    row.classList.add("done");
    if (name === "audio") $("total").textContent = ms(to);
  }
}

export function showServerTimings(timings) {
  const names = { answer_ms: "answer", ice_ms: "ICE", dtls_ms: "DTLS", first_audio_in_ms: "first audio in", first_audio_out_ms: "first audio out" };
  const known = Object.entries(names).filter(([field]) => typeof timings[field] === "number");
  $("server-view").textContent = known.length ? `Seen by the server, since the offer came: ${known.map(([field, name]) => `${name} ${ms(timings[field])}`).join(", ")}` : "";
}

/** history: readings of StatsReader, oldest first. */
export function showStats(history) {
  const now = history.at(-1);
  $("rtt").textContent = ms(now.rttMs);
  $("jitter").textContent = ms(now.jitterMs);
  $("loss-down").textContent = percent(now.lossDown);
  $("loss-up").textContent = percent(now.lossUp);
  $("codec").textContent = [now.codec, now.security].filter(Boolean).join(" · ");
  spark("rtt-spark", history.map((s) => s.rttMs), 1);
  spark("jitter-spark", history.map((s) => s.jitterMs), 1);
  spark("loss-down-spark", history.map((s) => s.lossDown), 0.02);
  spark("loss-up-spark", history.map((s) => s.lossUp), 0.02);
}

function spark(id, values, leastScale) {
  const points = values.filter((v) => v !== undefined).slice(-SPARK_POINTS);
  const top = Math.max(leastScale, ...points) * 1.15;
  $(id).setAttribute("points", points.map((v, i) => `${(SPARK_POINTS - points.length + i) * (60 / (SPARK_POINTS - 1))},${(19 - (v / top) * 18).toFixed(1)}`).join(" "));
}
