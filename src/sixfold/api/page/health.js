// What is loaded, what is allowed, how long it has been up, whose keys there are.

import { bytes, count, make, say, sentence, span } from "./dom.js";
import { call } from "./server.js";

const PERIOD_MS = 2000;

export class Health {
  constructor(root, feed) {
    this._feed = feed;
    this._shown = false;
    this._timer = 0;
    this._note = make("p", { class: "banner", role: "status", hidden: true });
    this._cards = make("div", { class: "columns cards" });
    this._values = new Map();
    root.append(this._note, this._cards);
  }

  show() {
    this._shown = true;
    clearTimeout(this._timer);
    this._ask();
  }

  hide() {
    this._shown = false;
    clearTimeout(this._timer);
  }

  async _ask() {
    let refused = false;
    try {
      if (!document.hidden) this._write(await (await call("/debug/health")).json());
      this._note.hidden = true;
    } catch (error) {
      refused = error.status === 401 || error.status === 403; // until there is another key
      say(this._note, `${sentence(error.message)} What you see may be old.`);
      this._note.hidden = false;
    }
    clearTimeout(this._timer);
    if (this._shown && !refused) this._timer = setTimeout(() => this._ask(), PERIOD_MS);
  }

  _write(health) {
    const { limits, memory, restarts } = health;
    this._card("Model", [
      ["Name", health.model],
      ["Context", `${count(limits.max_model_len)} tokens`],
      ["Chat template", health.chats ? "yes" : "no"],
      ["Sampling that its files recommend", Object.entries(health.sampling_defaults).map(([name, value]) => `${name} ${value}`).join(", ") || "none"],
    ]);
    this._card("Server", [
      ["State", health.state],
      ["Version", health.version],
      ["Build", health.build],
      ["Up for", span(health.uptime_s * 1000)],
      ["API processes", count(limits.api_processes)],
      ["Engines so far", count(health.engine_epoch)],
      ["Restarts", Object.entries(restarts).map(([role, n]) => `${role} ${n}`).join(", ")],
    ]);
    this._card("Limits", [
      ["Choices that run", count(limits.max_running)],
      ["Choices that run and wait", count(limits.max_outstanding)],
      ["Prompt tokens that wait", count(limits.max_queued_tokens)],
      ["Longest wait in the queue", limits.max_queue_wait_s ? `${limits.max_queue_wait_s} s` : "until a request's own deadline"],
      ["Body of a request", bytes(limits.max_body_bytes)],
      ["Connections per API process", count(limits.max_connections)],
    ]);
    this._card("Memory", [
      ["Weights", bytes(memory.weights)],
      ["KV cache", bytes(memory.kv_cache)],
      ["Blocks", `${count(limits.blocks)} of ${limits.block_size} tokens`],
      ["This API process, at most so far", bytes(memory.api_process_peak)],
    ]);
    const keys = health.keys;
    this._card(
      "Keys",
      keys === null
        ? [["In use", "none: whoever reaches the server may use it"]]
        : keys.map((key) => [key.name, `${key.scope}${key.tenant !== key.name ? `, tenant ${key.tenant}` : ""}${key.weight !== 1 ? `, weight ${key.weight}` : ""}`]),
    );
  }

  /** A card is made once; later only its words change. */
  _card(title, rows) {
    let values = this._values.get(title);
    if (!values || values.length !== rows.length) {
      const list = make("dl", { class: "facts" });
      values = rows.map(([name]) => {
        const value = make("dd");
        list.append(make("dt", {}, name), value);
        return value;
      });
      this._values.set(title, values);
      const card = make("section", { class: "panel", "aria-label": title, "data-card": title }, make("h2", {}, title), list);
      const old = this._cards.querySelector(`[data-card="${title}"]`);
      if (old) old.replaceWith(card);
      else this._cards.append(card);
    }
    rows.forEach(([, text], index) => say(values[index], text));
  }
}
