// Level meters: what an audio stream sounds like, as a number and as a moving line of bars.

const FLOOR_DB = -60;
const BAR_EVERY_MS = 45;
const BAR_WIDTH = 3;
const BAR_STEP = 6;

/** 0 (at or below the floor) to 1 (full scale) for a level in dBFS. */
export const loudness = (db) => Math.min(1, Math.max(0, 1 - db / FLOOR_DB));

/** Root mean square of the samples, in dB below full scale; -Infinity for silence. */
export function decibels(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  return 10 * Math.log10(sum / samples.length);
}

/** Listens to one stream without playing it. */
export class Level {
  #source;
  #analyser;
  #samples;

  constructor(context, stream) {
    this.#analyser = new AnalyserNode(context, { fftSize: 2048 });
    this.#samples = new Float32Array(this.#analyser.fftSize);
    this.#source = new MediaStreamAudioSourceNode(context, { mediaStream: stream });
    this.#source.connect(this.#analyser);
  }

  read() {
    this.#analyser.getFloatTimeDomainData(this.#samples);
    return decibels(this.#samples);
  }

  close() {
    this.#source.disconnect();
  }
}

/** Draws loudness as bars, the newest at the end `towards` ("left" or "right" edge of the button). */
export class Wave {
  #canvas;
  #newestAt;
  #bars = [];
  #last = 0;
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(canvas, newestAt) {
    this.#canvas = canvas;
    this.#newestAt = newestAt;
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Takes the level at time `now` (milliseconds); cheap to call on every frame. */
  push(level, now) {
    if (now - this.#last < BAR_EVERY_MS) return;
    this.#last = now;
    // Without motion the bars stand still and all show the present level.
    const count = this.#count();
    this.#bars = this.#still.matches ? Array(count).fill(level) : [level, ...this.#bars].slice(0, count);
    this.#draw();
  }

  clear() {
    this.#bars = [];
    this.#draw();
  }

  #count() {
    return Math.max(1, Math.floor(this.#canvas.clientWidth / BAR_STEP));
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const scale = window.devicePixelRatio;
    this.#canvas.width = width * scale;
    this.#canvas.height = height * scale;
    const pen = this.#canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = getComputedStyle(this.#canvas).color;
    for (let i = 0; i < this.#count(); i++) {
      const tall = Math.max(BAR_WIDTH, (this.#bars[i] ?? 0) * height);
      const x = this.#newestAt === "left" ? i * BAR_STEP : width - BAR_WIDTH - i * BAR_STEP;
      pen.globalAlpha = this.#bars[i] === undefined ? 0.22 : 1 - 0.75 * (i / this.#count());
      pen.beginPath();
      pen.roundRect(x, (height - tall) / 2, BAR_WIDTH, tall, BAR_WIDTH / 2);
      pen.fill();
    }
  }
}
