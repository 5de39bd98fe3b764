// The HTTP side of a call: place it, ask about it, end it. Nothing here knows WebRTC.
import { Problem } from "./problems.js";

const CALLS = new URL("v1/realtime/calls", document.baseURI);
const ANSWER_WITHIN_MS = 15_000;

const authorization = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function refusal(response, key) {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not our JSON: a proxy answered. The status alone has to do.
  }
  const detail = `HTTP ${response.status}${message ? `: ${message}` : ""}`;
  const codes = { 400: "offer", 401: key ? "key-refused" : "key-needed", 403: "forbidden", 404: "no-server", 405: "no-server", 413: "offer", 415: "offer", 422: "offer", 429: "too-many", 503: "no-transceiver" };
  return new Problem(codes[response.status] ?? "server", detail);
}

/** POST the offer; {answer, url} of the new call. Throws Problem, or AbortError once `signal` fires. */
export async function placeCall(offer, key, signal) {
  const late = AbortSignal.timeout(ANSWER_WITHIN_MS);
  try {
    const response = await fetch(CALLS, {
      method: "POST",
      headers: { "Content-Type": "application/sdp", ...authorization(key) },
      body: offer,
      cache: "no-store",
      signal: AbortSignal.any([signal, late]),
    });
    if (response.status !== 201) throw await refusal(response, key);
    const location = response.headers.get("Location");
    return { answer: await response.text(), url: location && new URL(location, response.url) };
  } catch (error) {
    if (error instanceof Problem || signal.aborted) throw error;
    if (late.aborted) throw new Problem("answer-late", `no answer within ${ANSWER_WITHIN_MS / 1000} s`);
    throw new Problem("network", `${CALLS.origin}: ${error.message}`);
  }
}

/** What the server tells about the call, or null: it is information only, a call goes on without it. */
export async function describeCall(url, key) {
  try {
    const response = await fetch(url, { headers: authorization(key), cache: "no-store" });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

/** Frees the call on the server at once. Also works while the page is being closed. */
export async function hangUp(url, key) {
  try {
    await fetch(`${url}/hangup`, { method: "POST", headers: authorization(key), keepalive: true });
  } catch {
    // The server notices by itself: DTLS close_notify, or no packets.
  }
}
