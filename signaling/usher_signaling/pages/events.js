// The event log: what went over the data channel, and the stages of the call. Bounded; equal neighbours are counted.

const MOST_ROWS = 200;
const ARROWS = { in: ["←", "from the server"], out: ["→", "to the server"], page: ["·", "this page"] };

export class EventLog {
  #list;
  #started = 0;
  #newest = null;

  constructor(list) {
    this.#list = list;
  }

  /** Empties the log; later times count from `now` (milliseconds of performance.now()). */
  restart(now) {
    this.#list.replaceChildren();
    this.#started = now;
    this.#newest = null;
  }

  /** A line of our own, such as "microphone open". */
  note(what, now = performance.now()) {
    this.#add("page", what, null, now);
  }

  /** A message of the data channel as it went over the wire. */
  message(direction, text) {
    let what = "not JSON";
    let body = text;
    try {
      const event = JSON.parse(text);
      what = String(event.type ?? "no type");
      body = JSON.stringify(event, null, 2);
    } catch {
      // Shown as it came.
    }
    this.#add(direction, what, body, performance.now());
  }

  #add(direction, what, body, now) {
    if (this.#newest && body !== null && this.#newest.direction === direction && this.#newest.what === what) {
      this.#newest.count += 1;
      this.#newest.times.textContent = `× ${this.#newest.count}`;
      this.#newest.pre.textContent = body;
      return;
    }
    const [arrow, spoken] = ARROWS[direction];
    const times = element("span", "times");
    const line = [element("span", "when", clock(now - this.#started)), element("span", direction, arrow), breakable(what), times];
    line[1].title = spoken;
    const row = element("li");
    row.dataset.direction = direction;
    row.dataset.type = what;
    const pre = element("pre", "", body ?? "");
    if (body === null) {
      const plain = element("div", "plain");
      plain.append(...line);
      row.append(plain);
    } else {
      const details = element("details");
      const summary = element("summary");
      summary.append(...line);
      details.append(summary, pre);
      row.append(details);
    }
    this.#newest = { direction, what, count: 1, times, pre };
    const follow = this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight < 40;
    this.#list.append(row);
    if (this.#list.childElementCount > MOST_ROWS) this.#list.firstElementChild.remove();
    if (follow) this.#list.scrollTop = this.#list.scrollHeight;
  }
}

const clock = (ms) => `${(ms / 1000).toFixed(2)} s`;

/** A dotted name that may break after its dots and underscores. */
function breakable(name) {
  const made = element("span", "what");
  for (const part of name.split(/(?<=[._])/)) made.append(part, document.createElement("wbr"));
  return made;
}

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}
