// Runs before the page's own scripts: remembers its peer connections, and records what a track really plays.
{
  const peers = [];
  const Native = window.RTCPeerConnection;
  window.RTCPeerConnection = class extends Native {
    constructor(...args) {
      super(...args);
      peers.push(this);
    }
  };

  const base64 = (bytes) => {
    let text = "";
    for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
    return btoa(text);
  };

  /** The last connection's incoming audio for so many seconds: {rate, pcm: base64 of int16, skipped: milliseconds}. */
  const listen = async (seconds) => {
    const [{ track }] = peers.at(-1).getReceivers();
    const reader = new MediaStreamTrackProcessor({ track: track.clone(), maxBufferSize: 1000 }).readable.getReader();
    const chunks = [];
    let rate = 0;
    let heard = 0;
    let expected = null;
    let skipped = 0;
    while (rate === 0 || heard < seconds * rate) {
      const { value: frame, done } = await reader.read();
      if (done) break;
      rate = frame.sampleRate;
      // Timestamps waver by a millisecond or two; a frame that is missing makes ten.
      if (expected !== null && frame.timestamp - expected > 5000) skipped += (frame.timestamp - expected) / 1000;
      expected = frame.timestamp + (frame.numberOfFrames / rate) * 1e6;
      const samples = new Float32Array(frame.numberOfFrames);
      frame.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
      chunks.push(Int16Array.from(samples, (s) => Math.max(-1, Math.min(1, s)) * 32767));
      heard += samples.length;
      frame.close();
    }
    await reader.cancel();
    const all = new Int16Array(heard);
    let at = 0;
    for (const chunk of chunks) {
      all.set(chunk, at);
      at += chunk.length;
    }
    return { rate, skipped, pcm: base64(new Uint8Array(all.buffer)) };
  };

  /** The statistics object of this type of the last connection, for audio where it has a kind; null if there is none. */
  const stat = async (type) => {
    const all = [...(await peers.at(-1).getStats()).values()];
    return all.find((s) => s.type === type && (s.kind ?? "audio") === "audio" && (s.nominated ?? true)) ?? null;
  };

  window.ear = { peers, listen, stat };
}
