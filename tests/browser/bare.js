// A page with nothing but the web platform: no library, no microphone permission, another origin than the server.
const TONE_HZ = 440;

async function toneStream() {
  const context = new AudioContext();
  await context.resume();
  const tone = new OscillatorNode(context, { frequency: TONE_HZ });
  const level = new GainNode(context, { gain: 0.25 });
  const out = new MediaStreamAudioDestinationNode(context);
  tone.connect(level).connect(out);
  tone.start();
  return out.stream;
}

const arrived = (target, type, done) =>
  new Promise((resolve) => {
    const check = () => done() && resolve();
    target.addEventListener(type, check);
    check();
  });

/** Places a call; resolves when connected and its data channel open. `complete`: the offer carries all candidates. */
window.call = async ({ url, key, complete = false }) => {
  const pc = new RTCPeerConnection();
  const stream = await toneStream();
  pc.addTrack(stream.getTracks()[0], stream);
  const channel = pc.createDataChannel("oai-events");
  const events = [];
  channel.addEventListener("message", ({ data }) => events.push(JSON.parse(data)));
  const speaker = new Audio();
  pc.addEventListener("track", ({ streams }) => {
    speaker.srcObject = streams[0];
    speaker.play();
  });
  await pc.setLocalDescription();
  if (complete) await arrived(pc, "icegatheringstatechange", () => pc.iceGatheringState === "complete");

  const offer = pc.localDescription.sdp;
  const headers = { "Content-Type": "application/sdp", Authorization: `Bearer ${key}` };
  const response = await fetch(url, { method: "POST", headers, body: offer });
  if (response.status !== 201) throw new Error(`${response.status}: ${await response.text()}`);
  const location = new URL(response.headers.get("Location"), response.url).href;
  const answer = await response.text();
  await pc.setRemoteDescription({ type: "answer", sdp: answer });
  await arrived(pc, "connectionstatechange", () => pc.connectionState === "connected");
  await arrived(channel, "open", () => channel.readyState === "open");
  await arrived(channel, "message", () => events.length > 0);
  Object.assign(window, { pc, channel, events, location_: location, key });
  return { offer, answer, location, etag: response.headers.get("ETag") };
};

/** ICE restart over WHIP (RFC 9725 section 4.3.2): new credentials in a PATCH, the answer's with them replaced. */
window.restartIce = async () => {
  const { pc, key } = window;
  await pc.setLocalDescription(await pc.createOffer({ iceRestart: true }));
  const wanted = /^(m=|a=mid:|a=ice-ufrag:|a=ice-pwd:|a=ice-options:|a=group:BUNDLE)/;
  const fragment = pc.localDescription.sdp.split("\r\n").filter((line) => wanted.test(line));
  const response = await fetch(window.location_, {
    method: "PATCH",
    headers: { "Content-Type": "application/trickle-ice-sdpfrag", "If-Match": '"*"', Authorization: `Bearer ${key}` },
    body: `${fragment.join("\r\n")}\r\n`,
  });
  if (response.status !== 200) throw new Error(`${response.status}: ${await response.text()}`);
  const text = await response.text();
  let answer = pc.remoteDescription.sdp;
  for (const name of ["ice-ufrag", "ice-pwd"]) {
    const [, value] = text.match(new RegExp(`^a=${name}:(\\S+)`, "m"));
    answer = answer.replace(new RegExp(`^a=${name}:\\S+`, "gm"), `a=${name}:${value}`);
  }
  await pc.setRemoteDescription({ type: "answer", sdp: answer });
  const ufrag = answer.match(/^a=ice-ufrag:(\S+)/m)[1];
  const uses = async () => {
    const stats = [...(await pc.getStats()).values()];
    const { selectedCandidatePairId } = stats.find((s) => s.type === "transport");
    const pair = stats.find((s) => s.id === selectedCandidatePairId);
    return stats.find((s) => s.id === pair?.remoteCandidateId)?.usernameFragment === ufrag;
  };
  while (!(await uses())) await new Promise((resolve) => setTimeout(resolve, 10));
  return { ufrag, etag: response.headers.get("ETag"), type: response.headers.get("Content-Type") };
};
