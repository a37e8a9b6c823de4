// The last half minute: how much was done, and when each request came, ran and ended.

import { colour, count, make, prepare, say } from "./dom.js";
import { held } from "./flow.js";

const HISTORY_MS = 30_000;
const BIN_MS = 200;

/** Tokens a second, rows that run, choices that wait, blocks that are held: the last half minute. */
export class History {
  constructor() {
    this._bins = [];
    this._canvas = make("canvas", { class: "strip", role: "img", "aria-label": "The last thirty seconds" });
    this._words = make("p", { class: "hint" });
    this.element = make(
      "div",
      {},
      this._canvas,
      make(
        "p",
        { class: "legend" },
        make("span", { class: "swatch tokens" }),
        "tokens/s ",
        make("span", { class: "swatch running" }),
        "run ",
        make("span", { class: "swatch waiting" }),
        "wait ",
        make("span", { class: "swatch used" }),
        "blocks held",
      ),
      this._words,
    );
  }

  take(frame) {
    const { stats } = frame;
    const start = Math.floor(frame.time_ms / BIN_MS) * BIN_MS;
    const last = this._bins.at(-1);
    const point = { start, total: stats.generated_tokens, epoch: frame.epoch, running: stats.running, waiting: stats.waiting, used: held(stats) / (stats.blocks_total || 1) };
    if (last?.start === start) Object.assign(last, point, { running: Math.max(last.running, point.running), waiting: Math.max(last.waiting, point.waiting) });
    else this._bins.push(point);
    while (this._bins.length && this._bins[0].start < start - HISTORY_MS) this._bins.shift();
  }

  draw(now) {
    const [context, width, height] = prepare(this._canvas);
    if (!width) return;
    const x = (time) => width * (1 - (now - time) / HISTORY_MS);
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.beginPath();
    for (let age = 0; age <= HISTORY_MS; age += 5000) {
      context.moveTo(x(now - age), 0);
      context.lineTo(x(now - age), height);
    }
    context.stroke();
    const rates = [];
    for (let i = 1; i < this._bins.length; i++) {
      const [a, b] = [this._bins[i - 1], this._bins[i]];
      if (a.epoch === b.epoch) rates.push([b.start, ((b.total - a.total) * 1000) / (b.start - a.start)]);
    }
    const top = Math.max(10, ...rates.map(([, rate]) => rate));
    const rows = Math.max(4, ...this._bins.map((bin) => bin.running + bin.waiting));
    area(context, rates.map(([time, rate]) => [x(time), height - (height - 4) * (rate / top)]), height, colour("--tokens"));
    line(context, this._bins.map((bin) => [x(bin.start), height - 2 - (height - 6) * bin.used]), colour("--used"));
    line(context, this._bins.map((bin) => [x(bin.start), height - 2 - (height - 6) * (bin.running / rows)]), colour("--running"));
    line(context, this._bins.map((bin) => [x(bin.start), height - 2 - (height - 6) * (bin.waiting / rows)]), colour("--waiting"));
    say(this._words, `30 s; full height: ${count(top)} tokens/s, ${rows} choices, all blocks`);
  }
}

const LANES = 24;
const LANE = 9;
const PARTS = [
  ["waiting", "--waiting"],
  ["prefill", "--used"],
  ["decode", "--running"],
];

/** A bar for each of the latest requests: waits, reads its prompt, writes. */
export class Lives {
  constructor(onChoose) {
    this._shown = [];
    this._canvas = make("canvas", { class: "lives", role: "img", "aria-label": "The latest requests, from arrival to end" });
    this.element = make(
      "div",
      {},
      this._canvas,
      make("p", { class: "legend" }, make("span", { class: "swatch waiting" }), "waits ", make("span", { class: "swatch used" }), "reads ", make("span", { class: "swatch running" }), "writes; click to follow"),
    );
    this._canvas.addEventListener("click", (event) => {
      const lane = Math.floor((event.clientY - this._canvas.getBoundingClientRect().top) / LANE);
      if (this._shown[lane]) onChoose(this._shown[lane].id);
    });
  }

  draw(tracks, now, chosen) {
    this._shown = tracks.filter((track) => (track.stages.get("ended") ?? now) > now - HISTORY_MS).slice(-LANES);
    this._canvas.style.height = `${Math.max(2, this._shown.length) * LANE}px`;
    const [context, width] = prepare(this._canvas);
    const x = (time) => Math.max(0, width * (1 - (now - time) / HISTORY_MS));
    this._shown.forEach((track, lane) => {
      const end = track.stages.get("ended") ?? now;
      if (track === chosen) {
        context.fillStyle = colour("--raised");
        context.fillRect(0, lane * LANE, width, LANE);
      }
      PARTS.forEach(([stage, style], index) => {
        const from = track.stages.get(stage);
        if (from === undefined) return;
        const next = PARTS.slice(index + 1).map(([later]) => track.stages.get(later)).find((time) => time !== undefined);
        context.fillStyle = colour(style);
        context.fillRect(x(from), lane * LANE + 2, Math.max(1, x(next ?? end) - x(from)), LANE - 3);
      });
    });
  }
}

function line(context, points, style) {
  context.strokeStyle = style;
  context.lineWidth = 1.75;
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}

function area(context, points, height, style) {
  if (points.length < 2) return;
  context.fillStyle = style;
  context.globalAlpha = 0.35;
  context.beginPath();
  context.moveTo(points[0][0], height);
  for (const [x, y] of points) context.lineTo(x, y);
  context.lineTo(points.at(-1)[0], height);
  context.fill();
  context.globalAlpha = 1;
  line(context, points, style);
}
