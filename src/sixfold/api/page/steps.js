// What each process did in the latest steps, and where its time went in the last second. Both are read from the
// server's own meters; a picture that changes sixty times a second cannot be read, so these change four times.

import { button, colour, count, hue, isDark, make, prepare, say, span } from "./dom.js";

const KEPT = 6000;
const N_STEPS = 8;
const LANE = 26;
const LEFT = 84;
const IDLE = "idle";

/** Colour of a site: work has hues, waits are quiet. */
function siteColour(index, kind) {
  if (kind !== "work") return colour("--cached");
  return `hsl(${hue(index * 3)} ${isDark() ? "48% 62%" : "52% 48%"})`;
}

/** The latest steps, lane by lane. */
export class Steps {
  /** `onChoose(uid)`: a request's own work was clicked. */
  constructor(onChoose) {
    this._spans = [];
    this._sites = [];
    this._boxes = [];
    this._frozen = false;
    this._canvas = make("canvas", { class: "steps", role: "img", "aria-label": "What each process did in the latest steps" });
    this._words = make("p", { class: "hint" }, "Nothing was measured yet.");
    this._button = button("Hold still", () => this._freeze(), { class: "quiet", "aria-pressed": "false" });
    this.element = make("div", { class: "stack" }, this._canvas, make("div", { class: "row" }, this._button, this._words));
    this._canvas.addEventListener("mousemove", (event) => this._point(event));
    this._canvas.addEventListener("click", (event) => {
      const box = this._boxAt(event);
      if (box?.[5]) onChoose(box[5]);
    });
  }

  take(frame) {
    if (frame.sites) this._sites = frame.sites;
    if (!frame.spans) return;
    this._spans.push(...frame.spans);
    if (this._spans.length > KEPT) this._spans.splice(0, this._spans.length - KEPT);
  }

  _freeze() {
    this._frozen = !this._frozen;
    say(this._button, this._frozen ? "Go on" : "Hold still");
    this._button.setAttribute("aria-pressed", String(this._frozen));
  }

  draw() {
    if (this._frozen || !this._spans.length || !this._sites.length) return;
    const window = this._window();
    if (!window) return;
    const shown = this._spans.filter(([, site, start, ms]) => start + ms > window.from && start < window.to && this._sites[site]?.kind !== IDLE);
    const lanes = [...new Set(shown.map(([role]) => role))].sort(byPlace);
    this._canvas.style.height = `${Math.max(2, lanes.length) * LANE + 20}px`;
    const [context, width] = prepare(this._canvas);
    const scale = (width - LEFT) / (window.to - window.from);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this._boxes = [];
    lanes.forEach((role, lane) => {
      const y = lane * LANE;
      context.fillStyle = colour("--soft");
      context.fillText(role, 0, y + LANE / 2);
      context.fillStyle = colour("--raised");
      context.fillRect(LEFT, y + 3, width - LEFT, LANE - 6);
    });
    // Waits first: what is done meanwhile lies over them.
    for (const waits of [true, false]) {
      for (const one of shown) {
        const [role, site, start, ms] = one;
        const { kind } = this._sites[site];
        if ((kind !== "work") !== waits) continue;
        const y = lanes.indexOf(role) * LANE;
        const left = Math.max(LEFT, LEFT + (start - window.from) * scale);
        const right = Math.min(width, LEFT + (start + ms - window.from) * scale);
        const inset = waits ? 10 : 3;
        context.fillStyle = siteColour(site, kind);
        context.fillRect(left, y + inset, Math.max(0.75, right - left), LANE - 2 * inset);
        this._boxes.push([left, y + 3, Math.max(3, right - left), LANE - 6, one, one[5]]);
      }
    }
    const base = lanes.length * LANE;
    context.fillStyle = colour("--soft");
    context.fillText("0", LEFT, base + 10);
    const words = span(window.to - window.from);
    context.fillText(words, width - context.measureText(words).width, base + 10);
    if (!this._pointed) say(this._words, window.words);
  }

  /** From the begin of the oldest of the last N_STEPS whole steps to the end of the newest. */
  _window() {
    const steps = new Map();
    for (let i = this._spans.length - 1; i >= 0 && steps.size < N_STEPS + 3; i--) {
      const [, site, start, ms, step] = this._spans[i];
      if (!step || this._sites[site].kind !== "work") continue;
      const known = steps.get(step);
      if (known) Object.assign(known, { from: Math.min(known.from, start), to: Math.max(known.to, start + ms) });
      else steps.set(step, { from: start, to: start + ms });
    }
    // The newest ones are not whole yet.
    const numbers = [...steps.keys()].sort((a, b) => a - b).slice(-N_STEPS - 2, -2);
    if (numbers.length < 2) return null;
    const from = Math.min(...numbers.map((number) => steps.get(number).from));
    const to = Math.max(...numbers.map((number) => steps.get(number).to));
    return { from, to, words: `Steps ${count(numbers[0])} to ${count(numbers.at(-1))}. Point at a piece to see what it is.` };
  }

  _boxAt(event) {
    const { left, top } = this._canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    return this._boxes.findLast(([bx, by, w, h]) => x >= bx && x <= bx + w && y >= by && y <= by + h);
  }

  _point(event) {
    const box = this._boxAt(event);
    this._pointed = Boolean(box);
    if (!box) return;
    const [role, site, , ms, step, uid] = box[4];
    const { name, what } = this._sites[site];
    say(this._words, `${role}, ${name}: ${what}; ${span(ms)}${step ? `, step ${count(step)}` : ""}${uid ? ", click to follow its request" : ""}`);
  }
}

/** Where time went in the last second or so: each process's places, the dearest first. */
export class Places {
  constructor() {
    this._sites = [];
    this._before = null;
    this._now = null;
    this._rows = [];
    this._body = make("tbody");
    this._none = make("p", { class: "hint" }, "Nothing was measured yet.");
    this.element = make(
      "div",
      { class: "scroll short" },
      make("table", { class: "places" }, make("thead", {}, make("tr", {}, ...["Place", "Kind", "Share of a second", "Times", "Each"].map((name, i) => make("th", { scope: "col", class: i > 2 ? "number" : null }, name)))), this._body),
      this._none,
    );
  }

  take(frame) {
    if (frame.sites) this._sites = frame.sites;
    if (!frame.places) return;
    if (this._now && frame.time_ms - this._now.time < 900) return;
    this._before = this._now;
    this._now = { time: frame.time_ms, places: new Map(frame.places.map((place) => [`${place[0]} ${place[1]}`, place])) };
  }

  draw() {
    if (!this._before || this._drawn === this._now) return;
    this._drawn = this._now;
    const passed = this._now.time - this._before.time;
    const rows = [];
    for (const [key, [role, site, total, ms, , waiting, since]] of this._now.places) {
      const then = this._before.places.get(key);
      const times = total - (then?.[2] ?? 0);
      const took = ms - (then?.[3] ?? 0);
      if (times || waiting) rows.push({ role, site: this._sites[site], times, took, share: took / passed, waiting, since });
    }
    rows.sort((a, b) => (a.site.kind === IDLE) - (b.site.kind === IDLE) || b.share - a.share);
    rows.length = Math.min(rows.length, 24);
    while (this._rows.length < rows.length) this._rows.push(this._row());
    while (this._rows.length > rows.length) this._rows.pop().element.remove();
    rows.forEach((row, index) => this._fill(this._rows[index], row));
    this._none.hidden = rows.length > 0;
  }

  _row() {
    const bar = make("span", { class: "bar" });
    const share = make("span", { class: "number" });
    const cells = [make("td"), make("td"), make("td", { class: "share" }, make("span", { class: "meter" }, bar), share), make("td", { class: "number" }), make("td", { class: "number" })];
    const element = make("tr", {}, ...cells);
    this._body.append(element);
    return { element, cells, bar, share };
  }

  _fill({ element, cells, bar, share }, { role, site, times, took, share: part, waiting, since }) {
    element.title = site.what;
    element.dataset.kind = site.kind;
    say(cells[0], role.startsWith("api-") && role !== "api-0" ? `${site.name} (${role})` : site.name);
    say(cells[1], site.kind);
    bar.style.width = `${Math.min(100, part * 100).toFixed(1)}%`;
    say(share, `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`);
    say(cells[3], times ? count(times) : "");
    say(cells[4], times ? span(took / times) : `${waiting} for ${span(since)}`);
  }
}

function byPlace(a, b) {
  const place = (role) => (role.startsWith("api") ? 0 : role === "engine" ? 1 : 2);
  return place(a) - place(b) || a.localeCompare(b);
}
