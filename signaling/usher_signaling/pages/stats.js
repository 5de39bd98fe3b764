// Reads RTCPeerConnection.getStats() into the few numbers the page shows.

const LOSS_OVER = 5; // readings; loss is that of the last few seconds, not of the whole call

/** Pure: one report as {route, audio}. Every field may be undefined; times in milliseconds. */
export function summarise(report) {
  const all = [...report.values()];
  const transport = all.find((s) => s.type === "transport");
  // Firefox has no transport.selectedCandidatePairId, but marks the pair.
  const pair = report.get(transport?.selectedCandidatePairId) ?? all.find((s) => s.type === "candidate-pair" && s.nominated && s.state === "succeeded");
  const inbound = all.find((s) => s.type === "inbound-rtp" && s.kind === "audio");
  const heard = all.find((s) => s.type === "remote-inbound-rtp" && s.kind === "audio");
  const codec = report.get(inbound?.codecId);
  return {
    local: report.get(pair?.localCandidateId),
    relay: report.get(pair?.remoteCandidateId),
    rttMs: milliseconds(pair?.currentRoundTripTime ?? heard?.roundTripTime),
    jitterMs: milliseconds(inbound?.jitter),
    received: inbound?.packetsReceived,
    lost: inbound?.packetsLost,
    lossUp: heard?.fractionLost,
    codec: codec && [codec.mimeType.replace("audio/", ""), `${codec.clockRate / 1000} kHz`].join(" "),
    security: [transport?.dtlsCipher && dtlsName(transport.tlsVersion), transport?.srtpCipher].filter(Boolean).join(", "),
  };
}

const milliseconds = (seconds) => (seconds === undefined ? undefined : seconds * 1000);
const dtlsName = (version) => ({ FEFD: "DTLS 1.2", FEFC: "DTLS 1.3" })[version] ?? "DTLS";

/** Keeps the last readings of one call to turn counters into loss of the last seconds. */
export class StatsReader {
  #connection;
  #readings = [];

  constructor(connection) {
    this.#connection = connection;
  }

  /** summarise() of now, plus lossDown (0 to 1; undefined until packets have come). */
  async read() {
    const now = summarise(await this.#connection.getStats());
    if (now.received === undefined) return now;
    this.#readings = [...this.#readings, now].slice(-LOSS_OVER - 1);
    const then = this.#readings[0];
    const lost = Math.max(0, now.lost - then.lost);
    const expected = now.received - then.received + lost;
    return { ...now, lossDown: expected > 0 ? lost / expected : undefined };
  }
}
