// One WebRTC call: microphone in, one peer connection, one data channel. Knows nothing of the page around it.
import { describeCall, hangUp, mintSecret, placeCall } from "./api.js";
import { microphoneProblem, Problem } from "./problems.js";

// The server forgets a call whose first packet has not come after 15 s.
const CONNECT_WITHIN_MS = 15_000;
const CHECK_FIRST_AUDIO_MS = 10;

/**
 * Events (CustomEvent):
 *   microphone  detail = MediaStream
 *   stage       detail = {name: "offer"|"answer"|"ice"|"dtls"|"channel"|"audio", at: milliseconds of performance.now()}
 *   remote      detail = MediaStream
 *   message     detail = {direction: "in"|"out", text}
 *   unsteady    detail = boolean, whether packets have stopped coming
 *   ended       detail = {problem: Problem or null, byServer: boolean, reason: what the server says, if it ended the call}, exactly once,
 *               and the last
 */
export class Call extends EventTarget {
  #key;
  #raw;
  #session;
  #abort = new AbortController();
  #timers = new Set();
  #reached = new Set();
  #ended = false;

  /** session: what the server is asked for, such as {type: "realtime", model: "echo"}. */
  constructor({ key = "", raw = false, session = { type: "realtime" } } = {}) {
    super();
    this.#key = key;
    this.#session = session;
    this.#raw = raw;
    this.url = null;
    this.microphone = null;
    this.connection = null;
  }

  /** Resolves when the answer is in place; connecting goes on behind it. A failure arrives as `ended`. */
  async start() {
    try {
      await this.#openMicrophone();
      await this.#connect();
    } catch (error) {
      this.#end(error);
    }
  }

  /** The server's name for the call, once it has answered. */
  get id() {
    return this.url?.pathname.split("/").at(-1);
  }

  get muted() {
    return this.microphone ? this.microphone.getTracks().every((track) => !track.enabled) : false;
  }

  set muted(quiet) {
    for (const track of this.microphone?.getTracks() ?? []) track.enabled = !quiet;
  }

  hangUp() {
    this.#end(null);
  }

  /** The server has said that the call is over; packets may never say so. */
  endedByServer() {
    this.#end(null, true);
  }

  async #openMicrophone() {
    const processed = !this.#raw;
    let microphone;
    try {
      microphone = await navigator.mediaDevices.getUserMedia({
        audio: { echoCancellation: processed, noiseSuppression: processed, autoGainControl: processed },
      });
    } catch (error) {
      throw microphoneProblem(error);
    }
    if (this.#ended) {
      stop(microphone); // hung up while the browser still asked for permission
      return;
    }
    this.microphone = microphone;
    this.#tell("microphone", microphone);
  }

  async #connect() {
    if (this.#ended) return;
    // No iceServers: the answer carries the relay's public address, nothing else is needed.
    const pc = new RTCPeerConnection();
    this.connection = pc;
    pc.addEventListener("track", ({ track, streams, receiver }) => {
      this.#tell("remote", streams[0] ?? new MediaStream([track]));
      this.#awaitAudio(receiver);
    });
    pc.addEventListener("iceconnectionstatechange", () => this.#onIce());
    pc.addEventListener("connectionstatechange", () => this.#onConnection());
    for (const track of this.microphone.getTracks()) pc.addTrack(track, this.microphone);
    this.#openChannel(pc.createDataChannel("oai-events"));

    const secret = await mintSecret(this.#session, this.#key, this.#abort.signal);
    if (this.#ended) return;
    await pc.setLocalDescription(await pc.createOffer());
    this.#stage("offer");
    const { answer, url } = await placeCall(pc.localDescription.sdp, secret, this.#key, this.#abort.signal);
    this.url = url;
    this.#stage("answer");
    if (this.#ended) {
      if (url) hangUp(url, this.#key);
      return;
    }
    try {
      await pc.setRemoteDescription({ type: "answer", sdp: answer });
    } catch (error) {
      throw new Problem("server", `the answer could not be used: ${error.message}`);
    }
    if (this.#ended) return;
    this.#watchDtls(pc);
    this.#later(CONNECT_WITHIN_MS, () => {
      if (!this.#reached.has("ice")) this.#end(new Problem("ice-failed", advertised(pc)));
      else if (!this.#reached.has("dtls")) this.#end(new Problem("dtls-failed", pc.connectionState));
    });
  }

  #openChannel(channel) {
    channel.addEventListener("open", () => this.#stage("channel"));
    channel.addEventListener("message", ({ data }) => this.#tell("message", { direction: "in", text: String(data) }));
    // A server that hangs up closes the channel; connectionState would say so only some 8 s later (Chromium).
    channel.addEventListener("close", () => this.#end(null, true));
  }

  #watchDtls(pc) {
    const transport = pc.getSenders()[0]?.transport;
    transport?.addEventListener("statechange", () => {
      if (transport.state === "connected") this.#stage("dtls");
      if (transport.state === "closed") this.#end(null, true);
      if (transport.state === "failed") this.#end(new Problem("dtls-failed", `DTLS ${transport.state}`));
    });
  }

  #onIce() {
    const pc = this.connection;
    const state = pc.iceConnectionState;
    if (state === "connected" || state === "completed") {
      this.#stage("ice");
      this.#tell("unsteady", false);
    }
    if (state === "disconnected") this.#tell("unsteady", true);
    if (state === "failed") this.#end(this.#reached.has("ice") ? new Problem("lost", "ICE failed") : new Problem("ice-failed", advertised(pc)));
  }

  #onConnection() {
    const state = this.connection.connectionState;
    if (state === "connected") this.#stage("dtls"); // browsers without RTCRtpSender.transport
    if (state === "failed") this.#end(new Problem(this.#reached.has("dtls") ? "lost" : "dtls-failed", `connection ${state}`));
  }

  #awaitAudio(receiver) {
    // A source appears with the first frame handed to the loudspeaker, not with the first packet on the wire.
    const timer = setInterval(() => {
      if (receiver.getSynchronizationSources().length === 0) return;
      clearInterval(timer);
      this.#stage("audio");
    }, CHECK_FIRST_AUDIO_MS);
    this.#timers.add(timer);
  }

  #later(ms, action) {
    this.#timers.add(setTimeout(action, ms));
  }

  #stage(name) {
    if (this.#ended || this.#reached.has(name)) return;
    this.#reached.add(name);
    this.#tell("stage", { name, at: performance.now() });
  }

  #tell(type, detail) {
    if (this.#ended && type !== "ended") return;
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  async #end(problem, byServer = false) {
    if (this.#ended) return;
    this.#ended = true;
    this.#abort.abort();
    for (const timer of this.#timers) clearTimeout(timer);
    if (this.microphone) stop(this.microphone);
    // From here packets that stay away look the same whatever has happened there.
    const told = this.url && (problem || byServer) ? await describeCall(this.url, this.#key) : null;
    const over = byServer || told?.state === "ended";
    const reason = (over && told?.end_reason) || null;
    if (reason === "backend_failed") problem = new Problem("backend-failed", `backend ${told.backend}: ${reason}`);
    if (reason === "gone") problem = new Problem("gone", problem?.detail);
    this.#tell("ended", { problem, byServer, reason });
    // Before the goodbye over DTLS: after it the server would not know the call any more.
    if (this.url && !over) await hangUp(this.url, this.#key);
    this.connection?.close();
  }
}

function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
}

/** Where the answer told the browser to send, for the person who has to open a firewall. */
function advertised(pc) {
  const lines = pc.remoteDescription?.sdp.matchAll(/^a=candidate:\S+ \d+ (\S+) \d+ (\S+) (\d+) /gm) ?? [];
  return [...new Set([...lines].map(([, transport, host, port]) => `${transport.toUpperCase()} ${host}:${port}`))].join(", ");
}
