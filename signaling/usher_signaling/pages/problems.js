// What can go wrong, in words, with what to do about it.

/** An expected failure. `code` is a key of WORDS; `detail` is for the person who runs the server. */
export class Problem extends Error {
  constructor(code, detail = "") {
    super(detail || code);
    this.code = code;
    this.detail = detail;
  }
}

const WORDS = {
  insecure: ["This address is not secure", "Browsers give the microphone only to https:// pages and to http://localhost. Open this page under one of those."],
  unsupported: ["This browser cannot place calls", "It has no WebRTC. Use a current Chrome, Edge, Firefox or Safari, and check that no extension blocks WebRTC."],
  "microphone-blocked": ["The microphone is blocked", "Allow the microphone for this site (the icon beside the address, and your system's privacy settings), then press the button again."],
  "no-microphone": ["No microphone found", "Plug one in or turn one on in your system's sound settings, then press the button again."],
  "microphone-busy": ["The microphone cannot be opened", "Another program may hold it. Close that program, or choose another microphone in your browser's settings, then press the button again."],
  "key-needed": ["This server asks for an API key", "Enter the key its operator gave you. It stays in this tab."],
  "key-refused": ["The key was refused", "Check for missing characters or an expired key, enter it again, or ask the server's operator for a new one."],
  forbidden: ["The server refused this page", "Without API keys a server answers only pages it serves itself, on this machine. Open its own address, or give it an API key and allow this origin."],
  "no-transceiver": ["Nobody is free to take the call", "Every transceiver is full, draining or not running. Try again in a moment. If you run the server: start another transceiver, or look at its log."],
  "too-many": ["Too many calls for now", "The server limits how often calls are placed. Wait a moment, then press the button again."],
  offer: ["The server did not accept this browser's offer", "Try another current browser. The line below says what the server could not read; the server's operator will want it."],
  "no-server": ["No call service at this address", "The page was loaded, but nothing answers calls here. Check the address and the proxy in front of the server."],
  server: ["The server failed", "This is not your fault. Try again; if it stays, give the line below to the server's operator."],
  network: ["The server cannot be reached", "Check your network and whether the server still runs, then press the button again."],
  "backend-failed": ["The backend failed", "What should have talked with you gave up, and the call with it. Try again. If you run the server: the transceiver's log says why."],
  "answer-late": ["The server did not answer in time", "It may be overloaded. Press the button again in a moment."],
  "ice-failed": ["No packet came through", "The call was accepted, but UDP to the address below does not pass. Check a firewall or VPN in between, and that the server advertises an address this browser can reach."],
  "dtls-failed": ["The encrypted connection could not be set up", "Something between here and the server changes or drops packets. Try another network; if it stays, look at the transceiver's log."],
  lost: ["The connection was lost", "Nothing has come from the server for a while. Check your network, then press the button again."],
  gone: ["The server that had your call is gone", "Your network is fine. Press the button to call again: another one takes it. If you run the server: the log says why its transceiver ended."],
  unexpected: ["Something unexpected happened in this page", "Load the page again. If it stays, report the line below."],
};

/** {title, advice, detail} to show for any thrown value. */
export function inWords(error) {
  const problem = error instanceof Problem ? error : new Problem("unexpected", String(error));
  const [title, advice] = WORDS[problem.code] ?? WORDS.unexpected;
  return { title, advice, detail: problem.detail };
}

const ENDINGS = {
  hangup: "Somebody ended the call at the server.",
  max_age: "The call reached the longest time this server allows.",
  idle: "Nothing was heard for a while, so the server ended the call.",
  drain_deadline: "This part of the server is being renewed.",
  shutdown: "This part of the server is being renewed.",
  backend_ended: "The other side has hung up.",
  upstream_failed: "The model's server does not take the call.",
  upstream_closed: "The model's server has ended the call.",
};

/** Why the server ended a call, in words; `reason` is `end_reason` of the call object. */
export const endingInWords = (reason) => `${ENDINGS[reason] ?? "The server has hung up."} Press the button to call again.`;

/** What getUserMedia threw, as a Problem (names: W3C Media Capture and Streams, section 10.2). */
export function microphoneProblem(error) {
  const codes = { NotAllowedError: "microphone-blocked", SecurityError: "microphone-blocked", NotFoundError: "no-microphone", OverconstrainedError: "no-microphone" };
  return new Problem(codes[error.name] ?? "microphone-busy", `${error.name}: ${error.message}`);
}

/** What is missing before a call can even be tried, or null. */
export function missing() {
  if (!window.isSecureContext) return new Problem("insecure", location.origin);
  if (!window.RTCPeerConnection || !navigator.mediaDevices?.getUserMedia) return new Problem("unsupported", navigator.userAgent);
  return null;
}
