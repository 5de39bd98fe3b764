// Wires the call to the page.
import { CALLS, describeCall, listBackends, openSideBand, REGION } from "./api.js";
import { Call } from "./call.js";
import { EventLog } from "./events.js";
import { forgetKey, keepKey, storedKey } from "./key.js";
import { Level, loudness, Wave } from "./meters.js";
import { endingInWords, missing, Problem } from "./problems.js";
import { StatsReader } from "./stats.js";
import * as snippet from "./snippet.js";
import * as view from "./view.js";

const STATE_EVERY_MS = 1000; // while connecting
const STATS_EVERY_MS = 1000;
const HOPS_EVERY = 5; // readings
const METER_TEXT_EVERY_MS = 500;
const MOST_READINGS = 60;

const $ = (id) => document.getElementById(id);
const log = new EventLog($("events"));
const sideLog = new EventLog($("side-events"));
const waves = { you: new Wave($("you-wave"), "right"), reply: new Wave($("reply-wave"), "left") };

/** One call as this page shows it, from the press of the button to the end. */
class Visit {
  #call;
  #audio = new AudioContext();
  #levels = {};
  #stages = {};
  #readings = [];
  #read = 0;
  #hops = [];
  #region = null;
  #homeRegion = null;
  #stats = null;
  #timer = 0;
  #frame = 0;
  #meterText = 0;
  #sideBand = null;
  #key = storedKey();

  constructor(onEnd) {
    const model = $("backend").value;
    this.#call = new Call({ key: this.#key, raw: $("raw").checked, session: { type: "realtime", ...(model && { model }) } });
    const on = (type, handle) => this.#call.addEventListener(type, ({ detail }) => handle(detail));
    on("microphone", (stream) => this.#onMicrophone(stream));
    on("stage", ({ name, at }) => this.#onStage(name, at));
    on("remote", (stream) => this.#onRemote(stream));
    on("message", ({ direction, text }) => log.message(direction, text));
    on("unsteady", (unsteady) => this.#onUnsteady(unsteady));
    on("ended", (end) => this.#onEnded(end, onEnd));
  }

  start() {
    for (const events of [log, sideLog]) events.restart(performance.now());
    view.showSideBand(false);
    view.clearNumbers();
    view.lightPath(null);
    view.hideProblem();
    view.askForKey(false);
    view.showMuted(false);
    view.showPhase("asking");
    this.#call.start();
  }

  hangUp() {
    this.#call.hangUp();
  }

  /** Opens or closes a WebSocket beside the call. */
  toggleSideBand() {
    if (this.#sideBand) return this.#sideBand.close();
    const socket = (this.#sideBand = openSideBand(this.#call.id, this.#key));
    sideLog.restart(performance.now());
    view.showSideBand(true);
    socket.addEventListener("open", () => sideLog.note("side-band open"));
    socket.addEventListener("message", ({ data }) => sideLog.message("in", data));
    socket.addEventListener("close", ({ code, reason }) => {
      sideLog.note(`side-band closed: ${[code, reason].filter(Boolean).join(" ")}`);
      this.#sideBand = null;
      view.showSideBand(false);
    });
  }

  toggleMute() {
    this.#call.muted = !this.#call.muted;
    view.showMuted(this.#call.muted);
    log.note(this.#call.muted ? "microphone muted" : "microphone on");
  }

  #onMicrophone(stream) {
    log.note(`microphone: ${stream.getAudioTracks()[0].label || "open"}`);
    view.showPhase("connecting");
    view.lightPath("browser");
    this.#levels.you = new Level(this.#audio, stream);
    this.#onFrame(performance.now());
  }

  #onRemote(stream) {
    $("speaker").srcObject = stream;
    // The button was pressed, so playing is allowed; a stream that ends meanwhile may still reject.
    $("speaker").play().catch(() => {});
    this.#levels.reply = new Level(this.#audio, stream);
  }

  #onStage(name, at) {
    this.#stages[name] = at;
    const words = { offer: "offer sent", answer: "answer received", ice: "ICE connected", dtls: "DTLS connected", channel: "data channel open", audio: "first audio" };
    log.note(words[name], at);
    if (name === "answer" && this.#call.url) {
      log.note(`call ${this.#call.id}`, at);
      this.#describe();
      this.#timer = setInterval(() => this.#describe(), STATE_EVERY_MS);
    }
    if (name === "ice") view.lightPath("relay");
    if (name === "dtls") this.#onLive();
    if (name === "audio") {
      view.lightPath("backend");
      this.#describe();
    }
    this.#showTimings();
  }

  #showTimings() {
    const order = ["offer", "answer", "ice", "dtls", "audio"].filter((name) => name in this.#stages);
    const since = (name) => this.#stages[name] - this.#stages.offer;
    const stages = order.slice(1).map((name, i) => ({ name, from: since(order[i]), to: Math.max(since(order[i]), since(name)) }));
    if (stages.length) view.showTimings(stages, stages.at(-1).to);
  }

  #onLive() {
    view.showPhase("live");
    view.offerSideBand(Boolean(this.#call.url));
    view.lightPath("audio" in this.#stages ? "backend" : "transceiver");
    this.#stats = new StatsReader(this.#call.connection);
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#readStats(), STATS_EVERY_MS);
    this.#readStats();
  }

  async #readStats() {
    const reading = await this.#stats.read();
    if (this.#timer === 0) return;
    this.#readings = [...this.#readings, reading].slice(-MOST_READINGS);
    view.showStats(this.#readings);
    if (this.#read++ % HOPS_EVERY === 1) this.#describe({ trace: true });
    this.#showHops();
    view.showClock((performance.now() - this.#stages.dtls) / 1000);
    if (reading.relay) view.showFact("relay", [endpoint(reading.relay), this.#region].filter(Boolean).join("\n"));
    if (reading.local) view.showFact("browser", ["this page", reading.local.networkType].filter((part) => part && part !== "unknown").join(", "));
  }

  async #describe({ trace = false } = {}) {
    if (!this.#call.url) return;
    const told = await describeCall(this.#call.url, this.#key, { trace });
    if (!told) return;
    if (told.state === "ended") this.#call.endedByServer();
    const { path = {}, backend, timings } = told;
    if (path.hops) this.#hops = path.hops;
    this.#region = path.relay_region;
    this.#homeRegion = path.region;
    if (path.relay && !this.#stats) view.showFact("relay", path.relay);
    const owner = [path.cluster !== undefined && `cluster ${path.cluster}`, seat(path.transceiver), path.region].filter(Boolean);
    if (owner.length) {
      view.showFact("transceiver", owner.join("\n"));
      view.showRegions(REGION, path.region);
    }
    if (backend) view.showFact("backend", backend);
    if (timings) view.showServerTimings(timings);
  }

  /** The client's own hop is what the others leave of the round trip of its checks. */
  #showHops() {
    const own = this.#hops[0];
    const others = this.#hops.slice(1).map(({ rtt_ms: rtt }) => rtt ?? undefined);
    const { rttMs } = this.#readings.at(-1) ?? {};
    const rest = rttMs === undefined || others.includes(undefined) ? undefined : Math.max(0, rttMs - others.reduce((sum, rtt) => sum + rtt, 0));
    view.showHops(this.#hops.map((hop, i) => ({ ...hop, ms: hop === own ? rest : others[i - 1] })));
    if (this.#hops.some(({ to }) => to === "home")) view.showFact("home", ["by a trunk", this.#homeRegion].filter(Boolean).join("\n"));
  }

  #onUnsteady(unsteady) {
    if (!("dtls" in this.#stages)) return;
    if (unsteady) {
      log.note("no packets from the server, trying on");
      // Whether the call's owner still runs is known long before consent runs out.
      this.#describe();
    }
    view.showStatus(unsteady ? "Connection unsteady" : "In a call");
  }

  #onFrame(now) {
    const textDue = now - this.#meterText > METER_TEXT_EVERY_MS;
    if (textDue) this.#meterText = now;
    for (const [who, level] of Object.entries(this.#levels)) {
      const db = level.read();
      waves[who].push(loudness(db), now);
      if (who === "reply") view.showHalo(loudness(db));
      if (textDue) view.showLevel(who, db);
    }
    this.#frame = requestAnimationFrame((then) => this.#onFrame(then));
  }

  #onEnded({ problem, byServer, reason }, onEnd) {
    clearInterval(this.#timer);
    this.#timer = 0;
    cancelAnimationFrame(this.#frame);
    for (const level of Object.values(this.#levels)) level.close();
    this.#audio.close();
    $("speaker").srcObject = null;
    for (const [who, wave] of Object.entries(waves)) {
      wave.clear();
      view.showLevel(who, null);
    }
    view.showHalo(0);
    view.lightPath(null);
    view.offerSideBand(false);
    view.showPhase(phaseAfter(problem, byServer));
    log.note(problem ? `ended: ${problem.code ?? problem}` : byServer ? "the server ended the call" : "call ended");
    if (problem) fail(problem);
    else if (byServer) view.showHint(endingInWords(reason));
    onEnd();
  }
}

/** "CLUSTER/POD/WORKER" for people; anything else as it is. */
function seat(route = "") {
  const [, pod, worker] = route.match(/^\d+\/(\d+)\/(\d+)$/) ?? [];
  return pod ? `pod ${pod}, worker\u00a0${worker}` : route;
}

function phaseAfter(problem, byServer) {
  if (problem) return problem.code === "key-needed" ? "locked" : "failed";
  return byServer ? "left" : "ended";
}

function endpoint({ address, ip, port }) {
  const host = address ?? ip ?? "hidden";
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

function fail(problem) {
  view.showProblem(problem);
  if (problem.code !== "key-needed" && problem.code !== "key-refused") return;
  forgetKey();
  view.askForKey(true);
}

let visit = null;

function press() {
  if (visit) return visit.hangUp();
  const problem = missing();
  if (problem) {
    view.showPhase("failed");
    return view.showProblem(problem);
  }
  if (document.body.dataset.phase === "locked" && !storedKey()) return fail(new Problem("key-needed"));
  visit = new Visit(() => (visit = null));
  visit.start();
}

async function offerBackends() {
  const chosen = $("backend").value;
  try {
    view.showBackends(await listBackends(storedKey()), chosen);
  } catch (problem) {
    if (!visit && !obstacle) lock(problem);
  }
  snippet.show($("snippet"), CALLS, $("backend").value);
}

/** Nothing goes without another key; the form says so, and the box only what was wrong with the last one. */
function lock(problem) {
  view.showPhase("locked");
  if (problem.code === "key-refused") fail(problem);
  else view.askForKey(true);
}

$("talk").addEventListener("click", press);
$("side-band").addEventListener("click", () => visit?.toggleSideBand());
$("backend").addEventListener("change", () => snippet.show($("snippet"), CALLS, $("backend").value));
$("copy").addEventListener("click", async () => view.showCopied(await snippet.copy($("snippet"))));
$("mute").addEventListener("click", () => visit?.toggleMute());
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key"));
  offerBackends();
  press();
});
// Frees the seat at once when the tab goes away.
window.addEventListener("pagehide", () => visit?.hangUp());

const obstacle = missing();
view.showPhase("idle");
offerBackends();
if (obstacle) {
  $("talk").disabled = true;
  view.showProblem(obstacle);
}
