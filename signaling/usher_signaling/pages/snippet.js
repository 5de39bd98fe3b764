// The code to place such a call from a page of one's own, with OpenAI's SDK as it is.

/** Shows the snippet for this server; backend: the name to put in as the model. */
export function show(element, calls, backend) {
  element.textContent = `// npm install @openai/agents-realtime
import { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession } from "@openai/agents-realtime";

// Your server asks for the secret, with the API key that no page ever sees:
//   POST ${new URL("client_secrets", calls)}
//   {"session": {"type": "realtime", "model": ${JSON.stringify(backend || "echo")}}, "event_policy": "browser"}
const { value } = await (await fetch("/your-server/secret")).json();

const transport = new OpenAIRealtimeWebRTC({ baseUrl: ${JSON.stringify(String(calls))} });
const session = new RealtimeSession(new RealtimeAgent({ name: "hello" }), { transport });
await session.connect({ apiKey: value });`;
}

/** Copies the text; false when the browser does not allow it. */
export async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    return false;
  }
}
