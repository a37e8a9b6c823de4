// Requests by name: those that are here, those that have just ended, and one that is followed.

import { button, count, holderColour, make, prepare, say, span, colour } from "./dom.js";

const MAX_ROWS = 40;
const MAX_KNOWN = 200;
const PACE_MS = 2000;
const TRACE_POINTS = 600;

const STAGES = [
  ["receive", "received"],
  ["prepare", "prepared"],
  ["submit", "handed over"],
  ["waiting", "queued"],
  ["prefill", "prompt read"],
  ["decode", "written"],
  ["ended", "ended"],
];

const REASONS = { slots: "waits for a place", blocks: "waits for blocks", step: "comes in the next step", order: "waits in line", budget: "waits for room in a step", leader: "waits for its shared prompt" };

/** What is known of one request over time. */
class Track {
  constructor(id, time) {
    Object.assign(this, { id, label: id, path: "", uids: [], began: time, stages: new Map(), choices: [], ended: null, trace: [], output: 0, seen: time });
  }

  enter(stage, time) {
    if (!this.stages.has(stage)) this.stages.set(stage, time);
    this.stage = stage;
  }

  /** Tokens a second, over the last PACE_MS. */
  pace() {
    const last = this.trace.at(-1);
    if (!last) return 0;
    const first = this.trace.find(([time]) => time >= last[0] - PACE_MS);
    return last[0] > first[0] ? ((last[1] - first[1]) * 1000) / (last[0] - first[0]) : 0;
  }

  get slots() {
    return this.choices.map((choice) => choice.slot).filter((slot) => slot >= 0);
  }
}

export class Requests {
  /** `onChoose(id)`: a request shall be followed. */
  constructor(onChoose) {
    this._known = new Map(); // id -> Track, the oldest first
    this._byUid = new Map();
    this._rows = new Map();
    this._onChoose = onChoose;
    this._body = make("tbody");
    this._none = make("p", { class: "empty", hidden: true }, "No request is here now. Ask something in the chat, or send one with curl.");
    this.element = make(
      "div",
      { class: "scroll" },
      make(
        "table",
        { class: "requests" },
        make("thead", {}, make("tr", {}, ...["Request", "State", "Prompt", "Written", "Tokens/s", "Blocks"].map((name, i) => make("th", { scope: "col", class: i > 1 ? "number" : null }, name)))),
        this._body,
      ),
      this._none,
    );
  }

  find(id) {
    return this._known.get(id) ?? [...this._known.values()].find((track) => track.label === id);
  }

  /** The keyboard's focus goes to the request that was followed, or to the first one. */
  focus() {
    (this._body.querySelector("[aria-current] button") ?? this._body.querySelector("button"))?.focus({ preventScroll: true });
  }

  bySlot(slot) {
    return [...this._known.values()].find((track) => !track.ended && track.slots.includes(slot));
  }

  byUid(uid) {
    return this._byUid.get(uid);
  }

  /** The oldest first. */
  all() {
    return [...this._known.values()];
  }

  /** Slot -> the request in it. */
  names() {
    const names = new Map();
    for (const track of this._known.values()) if (!track.ended) for (const slot of track.slots) names.set(slot, track.id);
    return names;
  }

  take(frame) {
    const time = frame.time_ms;
    const lost = new Set([...this._known.values()].filter((track) => !track.ended));
    for (const request of frame.requests) {
      if (!request.uids.length && !isGeneration(request.path)) continue;
      const track = this._track(request.id, request.uids, time - request.age_ms, request.label);
      Object.assign(track, { path: request.path, label: request.label, uids: request.uids, seen: time, choices: [] });
      for (const uid of request.uids) this._byUid.set(uid, track);
      if (request.stage !== "engine") track.enter(request.stage, time);
      lost.delete(track);
    }
    const own = new Set();
    for (const choice of frame.choices) {
      let track = this._byUid.get(choice.uid);
      if (!track || (track.ended && !own.has(track))) {
        if (track?.ended) continue; // its last step is not over yet
        // A request of another API process: known by the engine's number only.
        track = this._track(choice.uid, [choice.uid], time, choice.uid);
        this._byUid.set(choice.uid, track);
      }
      if (!own.has(track)) {
        own.add(track);
        track.choices = [];
      }
      track.choices.push(choice);
      track.seen = time;
      lost.delete(track);
    }
    for (const track of own) this._measure(track, time);
    for (const ended of frame.ended ?? []) this._end(ended, time);
    for (const track of lost) {
      if (track.ended || time - track.seen < 1000) continue;
      track.ended = { reasons: [], ms: track.seen - track.began, output: track.output, prompt: 0, cached: 0 };
      track.enter("ended", time);
    }
    this._forget();
  }

  _track(id, uids, began, label) {
    const older = uids.map((uid) => this._byUid.get(uid)).find(Boolean) ?? this._known.get(id) ?? this._known.get(label);
    if (older) {
      if (older.id !== id && !older.ended) {
        this._known.delete(older.id); // its answer has a name now
        older.id = id;
        this._known.set(id, older);
      }
      if (!older.ended) return older;
    }
    const track = new Track(id, began);
    this._known.set(id, track);
    return track;
  }

  _measure(track, time) {
    const states = track.choices.map((choice) => choice.state);
    const runs = track.choices.filter((choice) => choice.state === "running" || choice.state === "preempting");
    track.output = track.choices.reduce((sum, choice) => sum + choice.output, 0);
    if (runs.length) track.enter(runs.every((choice) => choice.output === 0) ? "prefill" : "decode", time);
    else if (states.includes("waiting") || states.includes("held")) track.enter("waiting", time);
    track.trace.push([time, track.output, track.choices.reduce((sum, choice) => sum + choice.blocks, 0)]);
    if (track.trace.length > TRACE_POINTS) track.trace = track.trace.filter((_, index) => index % 2 === 0);
  }

  _end(ended, time) {
    const track = this._track(ended.id, ended.uids, time - ended.ms, ended.label);
    Object.assign(track, { path: ended.path, label: ended.label, uids: ended.uids, ended, output: ended.output });
    track.last = track.choices;
    track.choices = [];
    track.enter("ended", time);
  }

  _forget() {
    for (const [id, track] of this._known) {
      if (this._known.size <= MAX_KNOWN) return;
      if (!track.ended) continue;
      this._known.delete(id);
      for (const uid of track.uids) this._byUid.delete(uid);
    }
  }

  /** The table, a few times a second: rows are kept and changed, not made anew. */
  write(chosen) {
    const tracks = [...this._known.values()];
    const here = tracks.filter((track) => !track.ended);
    const gone = tracks.filter((track) => track.ended).reverse();
    const shown = [...here, ...gone].slice(0, MAX_ROWS);
    const wanted = new Set(shown);
    const { activeElement } = document;
    for (const [track, row] of this._rows) {
      if (!wanted.has(track)) {
        row.element.remove();
        this._rows.delete(track);
      }
    }
    shown.forEach((track, index) => {
      let row = this._rows.get(track);
      if (!row) this._rows.set(track, (row = this._row(track)));
      if (this._body.children[index] !== row.element) this._body.insertBefore(row.element, this._body.children[index] ?? null);
      this._fill(row, track, chosen);
    });
    // A row that moves loses the keyboard's focus.
    if (activeElement !== document.activeElement && activeElement.isConnected) activeElement.focus({ preventScroll: true });
    this._none.hidden = shown.length > 0;
  }

  _row(track) {
    const cells = Array.from({ length: 6 }, (_, index) => make("td", { class: index > 1 ? "number" : null }));
    const chip = make("span", { class: "chip" });
    const name = button("", () => this._onChoose(track.id), { class: "name" });
    cells[0].append(chip, name);
    return { element: make("tr", {}, ...cells), cells, chip, name };
  }

  _fill(row, track, chosen) {
    say(row.name, short(track.id));
    row.name.setAttribute("aria-label", `Follow ${track.id}`);
    row.element.classList.toggle("ended", track.ended !== null);
    if (track === chosen) row.element.setAttribute("aria-current", "true");
    else row.element.removeAttribute("aria-current");
    const slot = track.slots[0];
    row.chip.style.background = slot === undefined ? "transparent" : holderColour(slot);
    const first = track.choices[0];
    say(row.cells[1], describe(track));
    say(row.cells[2], first ? `${count(Math.min(first.computed, first.prompt))} / ${count(first.prompt)}` : track.ended?.prompt ? count(track.ended.prompt) : "");
    say(row.cells[3], count(track.output));
    say(row.cells[4], count(track.ended ? (1000 * track.output) / Math.max(1, track.ended.ms) : track.pace()));
    say(row.cells[5], first ? count(track.choices.reduce((sum, choice) => sum + choice.blocks, 0)) : "");
  }
}

/** One request, from its arrival to its end. */
export class Follow {
  constructor(onLeave) {
    this._title = make("h2", {}, "");
    this._line = make("p", { class: "hint" });
    this._path = make("ol", { class: "path", "aria-label": "Its path" });
    this._steps = STAGES.map(([, name]) => {
      const when = make("span", { class: "when" });
      const item = make("li", {}, make("span", {}, name), when);
      this._path.append(item);
      return { item, when };
    });
    this._figures = make("dl", { class: "figures" });
    this._values = {};
    for (const name of ["State", "Prompt", "Written", "Tokens/s", "Blocks", "From the cache", "Preempted"]) {
      this._values[name] = make("dd", {}, "–");
      this._figures.append(make("div", {}, make("dt", {}, name), this._values[name]));
    }
    this._canvas = make("canvas", { class: "strip small", role: "img", "aria-label": "Its tokens over time" });
    this.element = make(
      "section",
      { class: "panel follow", "aria-label": "The request that is followed", hidden: true },
      make("div", { class: "row" }, this._title, button("Stop following", onLeave, { class: "quiet" })),
      this._line,
      this._path,
      this._figures,
      this._canvas,
    );
  }

  write(id, track) {
    this.element.hidden = !id;
    if (!id) return;
    say(this._title, `Request ${short(track?.id ?? id)}`);
    if (!track) {
      say(this._line, "It has not been seen since this view was opened.");
      return;
    }
    say(this._line, `${track.path} ${track.label !== track.id ? `label ${track.label}` : ""}`);
    let before = track.began;
    const last = STAGES.findLastIndex(([stage]) => track.stages.has(stage));
    STAGES.forEach(([stage], index) => {
      const { item, when } = this._steps[index];
      const time = track.stages.get(stage);
      item.classList.toggle("passed", index <= last);
      if (track.stage === stage) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
      say(when, time !== undefined ? `+${span(Math.max(0, time - before))}` : index < last ? "unseen" : "");
      if (time !== undefined) before = time;
    });
    const choices = track.choices.length ? track.choices : (track.last ?? []);
    const sum = (field) => choices.reduce((total, choice) => total + choice[field], 0);
    const put = (name, text) => say(this._values[name], text);
    put("State", describe(track));
    put("Prompt", choices.length ? `${count(Math.min(choices[0].computed, choices[0].prompt))} of ${count(choices[0].prompt)}` : count(track.ended?.prompt ?? 0));
    put("Written", `${count(track.output)}${choices.length > 1 ? ` in ${choices.length} choices` : ""}`);
    put("Tokens/s", track.ended ? `${count((1000 * track.output) / Math.max(1, track.ended.ms))} over all` : count(track.pace()));
    put("Blocks", track.ended ? "given back" : count(sum("blocks")));
    put("From the cache", `${count(track.ended?.cached ?? choices[0]?.cached ?? 0)} tokens`);
    put("Preempted", sum("incarnation") ? `${sum("incarnation")} times` : "never");
    this._draw(track);
  }

  _draw(track) {
    const [context, width, height] = prepare(this._canvas);
    const { trace } = track;
    if (trace.length < 2 || !width) return;
    const [from, to] = [trace[0][0], trace.at(-1)[0]];
    const most = Math.max(1, trace.at(-1)[1]);
    const blocks = Math.max(1, ...trace.map((point) => point[2]));
    for (const [index, top, name] of [[2, blocks, "--used"], [1, most, "--tokens"]]) {
      context.strokeStyle = colour(name);
      context.lineWidth = 2;
      context.beginPath();
      for (const point of trace) context.lineTo(((point[0] - from) / Math.max(1, to - from)) * width, height - 2 - (height - 4) * (point[index] / top));
      context.stroke();
    }
  }
}

function describe(track) {
  if (track.ended) {
    const reasons = [...new Set(track.ended.reasons)].join(", ");
    return `ended${reasons ? ` (${reasons})` : ""}, ${span(track.ended.ms)}`;
  }
  if (!track.choices.length) return { receive: "its body arrives", prepare: "is prepared", submit: "is handed over" }[track.stage] ?? "is being answered";
  const waits = track.choices.find((choice) => choice.state === "waiting");
  if (track.stage === "waiting") return REASONS[waits?.reason] ?? "waits";
  if (track.choices.some((choice) => choice.state === "preempting")) return "loses its place";
  return track.stage === "prefill" ? "prompt is read" : "writes";
}

function isGeneration(path) {
  return /completions|responses|messages$|embeddings/.test(path);
}

function short(id) {
  return id.length > 22 ? `${id.slice(0, 10)}…${id.slice(-8)}` : id;
}
