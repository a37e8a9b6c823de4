// What happens inside, live. Frames come up to sixty times a second: each only changes numbers in memory. Pictures are
// drawn when the screen is, words are written four times a second.

import { Blocks } from "./blocks.js";
import { make, say } from "./dom.js";
import { Flow } from "./flow.js";
import { Follow, Requests } from "./requests.js";
import { call } from "./server.js";
import { Places, Steps } from "./steps.js";
import { History, Lives } from "./timeline.js";

const WORDS_MS = 250;
const LOOKS = 5; // for a request that the feed does not show

export class Anatomy {
  constructor(root, feed) {
    this._feed = feed;
    this._shown = false;
    this._followed = "";
    this._uid = "";
    this._wordsAt = 0;
    this._nDrawn = -1;
    this._flow = new Flow();
    this._history = new History();
    this._requests = new Requests((id) => this._choose(id));
    this._follow = new Follow(() => this._choose(""));
    this._blocks = new Blocks(feed, (slot) => {
      const track = this._requests.bySlot(slot);
      if (track) this._choose(track.id);
    });
    this._lives = new Lives((id) => this._choose(id));
    this._steps = new Steps((uid) => {
      const track = this._requests.byUid(uid);
      if (track) this._choose(track.id);
    });
    this._places = new Places();
    this._waits = make("dl", { class: "figures waits" });
    // Who hears the page is told once, not at every second.
    this._why = make("span", { role: "status" });
    this._countdown = make("span", { "aria-hidden": "true" });
    this._veil = make("p", { class: "banner", hidden: true }, this._why, this._countdown);
    root.append(
      this._veil,
      this._flow.element,
      this._follow.element,
      make(
        "div",
        { class: "columns" },
        panel("Requests", "Click on one to follow it.", this._requests.element),
        panel("Block pool", "", this._blocks.element),
      ),
      panel("The latest steps", "", this._steps.element),
      make(
        "div",
        { class: "columns" },
        panel("Last half minute", "", this._history.element, this._lives.element),
        make("div", { class: "stack" }, panel("Why choices wait", "", this._waits), panel("Where time goes", "", this._places.element)),
      ),
    );
    feed.listen((frame) => frame && this._take(frame));
    this._drawSoon = this._draw.bind(this);
  }

  show(followed) {
    if (followed && followed !== this._followed) {
      this._followed = followed;
      this._uid = "";
    }
    if (this._shown) return;
    this._shown = true;
    requestAnimationFrame(this._drawSoon);
  }

  hide() {
    this._shown = false;
  }

  _choose(id) {
    this._followed = id;
    this._uid = "";
    history.replaceState(null, "", id ? `#anatomy/${encodeURIComponent(id)}` : "#anatomy");
    this._wordsAt = 0;
    if (id) this._follow.element.scrollIntoView({ block: "nearest" });
    else this._requests.focus();
  }

  /** Who is followed is not in the feed: another API process may answer it, and the feed shows those by the engine's
   *  number alone. The server knows that number, at the latest when the prompt is read. */
  async _lookUp(now) {
    const id = this._followed;
    if (this._asked?.id !== id) this._asked = { id, times: 0, at: 0 };
    if (this._asked.times >= LOOKS || now - this._asked.at < 1000) return;
    Object.assign(this._asked, { times: this._asked.times + 1, at: now });
    try {
      const text = await (await call(`/debug/requests/${encodeURIComponent(id)}`, { ask: false })).text();
      const uid = /"uid":(\d+)/.exec(text); // more digits than a number of JavaScript holds
      if (uid && id === this._followed) this._uid = BigInt(uid[1]).toString(16);
    } catch {
      // not there, or not for this key
    }
  }

  _take(frame) {
    this._flow.take(frame);
    this._requests.take(frame);
    this._history.take(frame);
    this._steps.take(frame);
    this._places.take(frame);
  }

  _draw(now) {
    if (!this._shown) return;
    requestAnimationFrame(this._drawSoon);
    const { frame, nFrames, connection } = this._feed;
    this._veil.hidden = connection === "open" || connection === "connecting";
    if (!this._veil.hidden) this._writeVeil();
    if (!frame) return;
    const track = this._followed ? (this._requests.find(this._followed) ?? this._requests.byUid(this._uid)) : null;
    if (nFrames !== this._nDrawn || this._flow.moves) this._flow.draw(now);
    if (nFrames !== this._nDrawn) {
      this._blocks.draw(this._requests.names(), new Set(track && !track.ended ? track.slots : []));
    }
    if (now - this._wordsAt > WORDS_MS) {
      this._wordsAt = now;
      if (this._followed && !track) this._lookUp(now);
      this._flow.write(frame);
      this._requests.write(track);
      this._follow.write(this._followed, track);
      this._history.draw(frame.time_ms);
      this._lives.draw(this._requests.all(), frame.time_ms, track);
      this._steps.draw();
      this._places.draw();
      this._writeWaits(frame);
    }
    this._nDrawn = nFrames;
  }

  _writeVeil() {
    const { connection, problem, retryAt } = this._feed;
    this._veil.dataset.kind = connection === "closed" ? "" : "bad";
    say(this._countdown, connection === "lost" ? ` Next try in ${Math.max(0, Math.ceil((retryAt - Date.now()) / 1000))} s.` : "");
    if (connection === "refused") say(this._why, `The server does not show this: ${problem}. “Key”, above, takes another one.`);
    else if (connection === "closed") say(this._why, "Paused while the page is hidden.");
    else say(this._why, `The connection is lost (${problem}). What you see is old.`);
  }

  _writeWaits(frame) {
    const rows = new Map(Object.entries(WAITS).map(([reason, words]) => [words, 0]));
    for (const choice of frame.choices) if (WAITS[choice.reason]) rows.set(WAITS[choice.reason], rows.get(WAITS[choice.reason]) + 1);
    for (const [stage, words] of Object.entries(STAGES)) rows.set(words, frame.requests.filter((request) => request.stage === stage).length);
    if (!this._waits.children.length) {
      for (const words of rows.keys()) this._waits.append(make("div", {}, make("dt", {}, words), make("dd", {}, "0")));
    }
    [...rows.values()].forEach((n, index) => {
      const row = this._waits.children[index];
      say(row.lastChild, String(n));
      row.classList.toggle("some", n > 0);
    });
  }
}

const WAITS = {
  slots: "For a place among those that run",
  blocks: "For free blocks",
  step: "For the next step",
  order: "Behind others in the queue",
  budget: "For room in a step",
  leader: "For the prompt they share",
};

const STAGES = {
  receive: "For the rest of a body",
  prepare: "For template and tokenizer",
  submit: "For the engine's verdict",
};

function panel(title, hint, ...children) {
  const words = hint ? make("p", { class: "hint" }, hint) : null;
  return make("section", { class: "panel", "aria-label": title }, make("h2", {}, title), words, ...children);
}
