// What a page of a user of @openai/agents-realtime does, with a tone in place of a person.
import { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

/** Connects a session, whose microphone is on or muted; the promise is the library's own. */
window.connectAgent = async ({ baseUrl, apiKey, model = "echo", muted = false }) => {
  const raw = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const mediaStream = await navigator.mediaDevices.getUserMedia({ audio: raw });
  mediaStream.getAudioTracks()[0].enabled = !muted;
  const transport = new OpenAIRealtimeWebRTC({ baseUrl, mediaStream, audioElement: document.querySelector("audio") });
  const heard = { events: [], errors: [], cities: [] };
  const weather = tool({
    name: "weather",
    description: "The weather in a city.",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      heard.cities.push(city);
      return `Rain in ${city}.`;
    },
  });
  const agent = new RealtimeAgent({ name: "Echo", instructions: "Say it back.", tools: [weather] });
  const session = new RealtimeSession(agent, { transport, model });
  transport.on("*", (event) => heard.events.push(event.type));
  session.on("error", ({ error }) => heard.errors.push(JSON.stringify(error) + String(error?.message ?? error)));
  Object.assign(window, { session, transport, heard });
  await session.connect({ apiKey });
};
