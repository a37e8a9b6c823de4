// The six components, and what goes from one to the next. Every dot stands for something that happened between two
// frames: a request that came, a piece of a prompt that was read, a token that was drawn. Where much happens at once, a
// dot stands for several (MAX_DOTS_PER_FRAME).

import { colour, count, holderColour, make, prepare, say, still } from "./dom.js";

const MAX_DOTS = 400;
const MAX_DOTS_PER_FRAME = 24;
const TRAVEL_MS = 520;

const PARTS = [
  ["api", "API", "what was asked, as token ids; and the answer, as events"],
  ["scheduler", "Scheduler", "who runs in this step, and how many tokens of each"],
  ["cache", "KV cache", "which block of memory holds which tokens"],
  ["executor", "Executor", "what the model says to these tokens"],
  ["sampler", "Sampler", "which token that makes"],
  ["detokenizer", "Detokenizer", "which text is safe to send"],
];

export class Flow {
  constructor() {
    this._parts = {};
    this._dots = [];
    this._before = null;
    this._rate = { at: 0, tokens: 0, prompt: 0, shown: 0, shownPrompt: 0 };
    this._canvas = make("canvas", { class: "pipes", "aria-hidden": "true" });
    this.element = make("div", { class: "flow", role: "group", "aria-label": "The six components" }, this._canvas);
    for (const [index, [name, title, role]] of PARTS.entries()) {
      const main = make("p", { class: "figure" }, "–");
      const more = make("p", { class: "detail" });
      const box = make(
        "div",
        { class: `part ${name}`, title: role },
        make("h3", {}, make("span", { class: "index" }, String(index + 1)), title),
        main,
        more,
      );
      this._parts[name] = { box, main, more };
      this.element.append(box);
    }
    new ResizeObserver(() => (this._places = null)).observe(this.element);
  }

  /** A frame has come. `slotOf(choice)` gives the number of a choice's colour. */
  take(frame) {
    const before = this._before;
    this._before = frame;
    if (!before || before.epoch !== frame.epoch) return;
    const stats = frame.stats;
    const nTokens = stats.generated_tokens - before.stats.generated_tokens;
    const nHeld = held(stats) - held(before.stats);
    const old = new Map(before.choices.map((choice) => [`${choice.uid}:${choice.choice}`, choice]));
    let nPrompt = 0;
    const seen = new Set(before.requests.map((request) => request.id));
    for (const request of frame.requests) if (!seen.has(request.id)) this._send("api", "scheduler", 1, null, 5);
    let budget = MAX_DOTS_PER_FRAME;
    for (const choice of frame.choices) {
      const then = old.get(`${choice.uid}:${choice.choice}`);
      const read = Math.max(0, Math.min(choice.computed, choice.prompt) - Math.min(then?.computed ?? choice.cached, choice.prompt));
      nPrompt += read;
      const drawn = choice.output - (then?.output ?? 0);
      if (read && budget > 0) {
        const n = Math.min(4, Math.ceil(read / 16));
        this._send("scheduler", "cache", n, choice.slot, 4);
        budget -= this._send("cache", "executor", n, choice.slot, 4, 360);
      }
      if (drawn > 0 && budget > 0) budget -= this._send("executor", "sampler", 1, choice.slot, 3);
    }
    const shown = Math.min(nTokens, 6);
    this._send("sampler", "detokenizer", shown, null, 3, 180);
    this._send("detokenizer", "api", shown, null, 3, 360);
    if (nHeld > 0) this._send("scheduler", "cache", Math.min(nHeld, 3), null, 3);
    if (nHeld < 0) this._send("cache", "scheduler", Math.min(-nHeld, 6), null, 3);
    this._count(frame, nTokens, nPrompt);
  }

  _count(frame, nTokens, nPrompt) {
    const rate = this._rate;
    rate.tokens += Math.max(0, nTokens);
    rate.prompt += nPrompt;
    const passed = frame.time_ms - rate.at;
    if (passed < 1000) return;
    rate.shown = passed < 3000 ? (rate.tokens * 1000) / passed : 0;
    rate.shownPrompt = passed < 3000 ? (rate.prompt * 1000) / passed : 0;
    Object.assign(rate, { at: frame.time_ms, tokens: 0, prompt: 0 });
  }

  /** Numbers in words, a few times a second. */
  write(frame) {
    const { stats } = frame;
    const put = (name, main, more) => {
      say(this._parts[name].main, main);
      say(this._parts[name].more, more);
    };
    const streams = frame.requests.filter((request) => request.stage === "engine").length;
    put("api", plural(frame.requests.length, "request"), `${frame.n_preparing} being prepared`);
    put("scheduler", `${stats.running} run, ${stats.waiting} wait`, stats.preemptions ? `${count(stats.preemptions)} preemptions so far` : `${count(stats.queued_tokens)} prompt tokens wait`);
    const used = stats.blocks_total ? (100 * held(stats)) / stats.blocks_total : 0;
    put("cache", `${used.toFixed(used < 10 ? 1 : 0)} % held`, `${count(stats.blocks_cached)} cached, ${count(stats.blocks_free)} free`);
    put("executor", `step ${count(frame.step)}`, `${frame.outstanding} under way; ${count(this._rate.shownPrompt)} prompt tokens/s`);
    put("sampler", `${count(this._rate.shown)} tokens/s`, `${count(stats.generated_tokens)} so far`);
    put("detokenizer", plural(streams, "answer"), `${count(Object.values(stats.finished).reduce((a, b) => a + b, 0))} ended so far`);
  }

  _send(from, to, n, slot, size, delay = 0) {
    if (still.matches) return n;
    const now = performance.now() + delay;
    for (let i = 0; i < n && this._dots.length < MAX_DOTS; i++) {
      this._dots.push({ from, to, slot, size, begin: now + i * 45, shift: (Math.random() - 0.5) * 44 });
    }
    return n;
  }

  /** Whether anything moves. */
  get moves() {
    return this._dots.length > 0;
  }

  draw(now) {
    const [context, width, height] = prepare(this._canvas);
    if (!width) return;
    this._places ??= this._measure();
    context.lineWidth = 2;
    context.strokeStyle = colour("--line");
    context.fillStyle = colour("--line");
    for (const [from, to] of PIPES) pipe(context, this._places[from], this._places[to]);
    this._dots = this._dots.filter((dot) => now < dot.begin + TRAVEL_MS);
    for (const dot of this._dots) {
      if (now < dot.begin) continue;
      const t = (now - dot.begin) / TRAVEL_MS;
      const eased = t * t * (3 - 2 * t);
      const a = this._places[dot.from];
      const b = this._places[dot.to];
      const across = Math.abs(b.x - a.x) > Math.abs(b.y - a.y);
      context.fillStyle = dot.slot === null || dot.slot < 0 ? colour("--accent") : holderColour(dot.slot);
      context.beginPath();
      context.arc(a.x + (b.x - a.x) * eased + (across ? 0 : dot.shift), a.y + (b.y - a.y) * eased + (across ? dot.shift : 0), dot.size, 0, 7);
      context.fill();
    }
  }

  _measure() {
    const own = this.element.getBoundingClientRect();
    const places = {};
    for (const [name, { box }] of Object.entries(this._parts)) {
      const { left, top, width, height } = box.getBoundingClientRect();
      places[name] = { x: left - own.left + width / 2, y: top - own.top + height / 2, w: width / 2, h: height / 2 };
    }
    return places;
  }
}

const PIPES = [
  ["api", "scheduler"],
  ["scheduler", "cache"],
  ["cache", "executor"],
  ["executor", "sampler"],
  ["sampler", "detokenizer"],
  ["detokenizer", "api"],
];

/** A line from box to box, with a small arrow in the gap. */
function pipe(context, a, b) {
  context.beginPath();
  context.moveTo(a.x, a.y);
  context.lineTo(b.x, b.y);
  context.stroke();
  const across = Math.abs(b.x - a.x) > Math.abs(b.y - a.y);
  const sign = across ? Math.sign(b.x - a.x) : Math.sign(b.y - a.y);
  const x = across ? (a.x + sign * a.w + b.x - sign * b.w) / 2 : a.x;
  const y = across ? a.y : (a.y + sign * a.h + b.y - sign * b.h) / 2;
  context.beginPath();
  for (const [along, side] of [[5, 0], [-4, 5], [-4, -5]]) {
    const [dx, dy] = across ? [along * sign, side] : [side, along * sign];
    context.lineTo(x + dx, y + dy);
  }
  context.fill();
}

export function held(stats) {
  return stats.blocks_total - stats.blocks_free - stats.blocks_cached;
}

function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
