// What a page of a user of @openai/agents-realtime does, with a tone in place of a person.
import { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession } from "@openai/agents-realtime";

/** Connects a session; the promise is the library's own. */
window.connectAgent = async ({ baseUrl, apiKey }) => {
  const raw = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const transport = new OpenAIRealtimeWebRTC({
    baseUrl,
    mediaStream: await navigator.mediaDevices.getUserMedia({ audio: raw }),
    audioElement: document.querySelector("audio"),
  });
  const session = new RealtimeSession(new RealtimeAgent({ name: "Echo", instructions: "Say it back." }), { transport, model: "echo" });
  const heard = { events: [], errors: [] };
  transport.on("*", (event) => heard.events.push(event.type));
  session.on("error", ({ error }) => heard.errors.push(JSON.stringify(error) + String(error?.message ?? error)));
  Object.assign(window, { session, transport, heard });
  await session.connect({ apiKey });
};
