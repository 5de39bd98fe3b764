// The HTTP side of a call: place it, ask about it, end it. Nothing here knows WebRTC.
import { Problem } from "./problems.js";

const API = new URL("v1/", document.baseURI);
export const CALLS = new URL("realtime/calls", API);
const ANSWER_WITHIN_MS = 15_000;
/** For what a person should not have to wait for. */
const TOLD_WITHIN_MS = 2_000;
/** `?region=region-2` in this page's address asks for transceivers there, where the server believes it (`usher up` does). */
export const REGION = new URLSearchParams(location.search).get("region");

const authorization = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

/** What a status means only where an offer was sent. */
const OF_AN_OFFER = { 400: "offer", 413: "offer", 415: "offer", 422: "offer", 503: "no-transceiver" };

async function refusal(response, key, more = {}) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // Not our JSON: a proxy answered. The status alone has to do.
  }
  if (response.status === 401 && !key) return new Problem("key-needed"); // the server's words are for programs
  const detail = `HTTP ${response.status}${said.message ? `: ${said.message}` : ""}`;
  if (said.code === "backend_failed") return new Problem("backend-failed", detail);
  const forbidden = said.code === "api_key_required" ? "key-refused" : "forbidden";
  const codes = { 401: "key-refused", 403: forbidden, 404: "no-server", 405: "no-server", 429: "too-many", ...more };
  return new Problem(codes[response.status] ?? "server", detail);
}

/** POST to the API. Throws Problem, or AbortError once `signal` fires. `more`: problems of statuses here, beside the usual. */
async function post(url, { type, body, bearer, key, signal, more }) {
  const late = AbortSignal.timeout(ANSWER_WITHIN_MS);
  try {
    const response = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": type, ...authorization(bearer), ...(REGION && { "Usher-Region": REGION }) },
      body,
      cache: "no-store",
      signal: AbortSignal.any([signal, late]),
    });
    if (!response.ok) throw await refusal(response, key, more);
    return { text: await response.text(), location: response.headers.get("Location"), from: response.url };
  } catch (error) {
    if (error instanceof Problem || signal.aborted) throw error;
    if (late.aborted) throw new Problem("answer-late", `no answer within ${ANSWER_WITHIN_MS / 1000} s`);
    throw new Problem("network", `${url.origin}: ${error.message}`);
  }
}

/**
 * An ephemeral secret for one call. In a web application your server asks for it, with the API key that the page never
 * sees, and fixes the session in it. Here the page is that server too.
 */
export async function mintSecret(session, key, signal) {
  const body = JSON.stringify({ session });
  const { text } = await post(new URL("realtime/client_secrets", API), { type: "application/json", body, bearer: key, key, signal });
  return JSON.parse(text).value;
}

/** POST the offer with an ephemeral secret; {answer, url} of the new call. */
export async function placeCall(offer, secret, key, signal) {
  const { text, location, from } = await post(CALLS, { type: "application/sdp", body: offer, bearer: secret, key, signal, more: OF_AN_OFFER });
  return { answer: text, url: location && new URL(location, from) };
}

/** Names of the backends that a caller may choose; empty when the server does not tell. Throws Problem for want of a key. */
export async function listBackends(key) {
  let response;
  try {
    response = await fetch(new URL("models", API), { headers: authorization(key), cache: "no-store" });
    if (response.ok) return (await response.json()).data.map(({ id }) => id);
  } catch {
    return [];
  }
  if (response.status === 401) throw await refusal(response, key);
  return [];
}

/** Relays and transceivers as the server sees them. Throws Problem. */
export async function readFleet(key) {
  let response;
  try {
    response = await fetch(new URL("fleet", API), { headers: authorization(key), cache: "no-store" });
  } catch (error) {
    throw new Problem("network", `${API.origin}: ${error.message}`);
  }
  if (!response.ok) throw await refusal(response, key);
  return await response.json();
}

/** A WebSocket beside a call, as your server would open it: it sees the events and may send some. */
export function openSideBand(callId, key) {
  const url = new URL(`realtime?call_id=${encodeURIComponent(callId)}`, API);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(url, ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])]);
}

/** What the server tells about the call, with trace its hops as well, or null: it is information only, a call goes on without it. With its transceiver a call has ended, too. */
export async function describeCall(url, key, { trace = false } = {}) {
  try {
    const response = await fetch(trace ? `${url}?trace=1` : url, { headers: authorization(key), cache: "no-store", signal: AbortSignal.timeout(TOLD_WITHIN_MS) });
    if (response.status === 410) return { state: "ended", end_reason: "gone" };
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

/** Frees the call on the server at once. Also works while the page is being closed. */
export async function hangUp(url, key) {
  try {
    const signal = AbortSignal.timeout(TOLD_WITHIN_MS);
    await fetch(`${url}/hangup`, { method: "POST", headers: authorization(key), keepalive: true, signal });
  } catch {
    // The server notices by itself: DTLS close_notify, or no packets.
  }
}
