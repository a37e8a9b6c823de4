// The live feed: one connection while somebody looks, none otherwise. Holds the newest frame and the block map; whoever
// draws looks at them when it draws.

import { ServerError, backoff, call, events } from "./server.js";

const SILENCE_MS = 2500; // the server says something four times a second

export class Feed {
  constructor() {
    this.frame = null;
    this.cells = new Uint16Array(0);
    this.blocksPerCell = 1;
    this.connection = "closed"; // closed, connecting, open, lost, refused
    this.problem = "";
    this.retryAt = 0;
    this.nFrames = 0;
    this.mapVersion = 0;
    this._wanted = false;
    this._abort = null;
    this._listeners = new Set();
  }

  /** `listener(frame)` for each frame; `frame` is null when only the connection's state has changed. */
  listen(listener) {
    this._listeners.add(listener);
  }

  /** Connect, or hang up. Idempotent. */
  want(wanted) {
    if (wanted === this._wanted) return;
    this._wanted = wanted;
    if (wanted) {
      this._abort = new AbortController();
      this._run(this._abort);
    } else {
      this._abort.abort();
      this._set("closed");
    }
  }

  _set(connection, problem = "", retryAt = 0) {
    Object.assign(this, { connection, problem, retryAt });
    this._tell(null);
  }

  _tell(frame) {
    for (const listener of this._listeners) listener(frame);
  }

  async _run(abort) {
    for (let tries = 0; !abort.signal.aborted; tries++) {
      if (tries === 0) this._set("connecting");
      const once = new AbortController();
      const cut = () => once.abort();
      abort.signal.addEventListener("abort", cut);
      let watchdog = setTimeout(cut, SILENCE_MS * 2);
      try {
        const response = await call("/debug/live?interval_ms=16", { signal: once.signal });
        for await (const data of events(response)) {
          clearTimeout(watchdog);
          watchdog = setTimeout(cut, SILENCE_MS);
          this._take(JSON.parse(data));
          if (this.connection !== "open") this._set("open");
          tries = 0;
        }
        throw new ServerError("the connection has ended");
      } catch (error) {
        if (abort.signal.aborted) return;
        const wait = error.retryMs ?? backoff(tries);
        const refused = error.status === 401 || error.status === 403;
        const words = error.name === "AbortError" ? "nothing is heard from the server" : error.message;
        this._set(refused ? "refused" : "lost", words, refused ? 0 : Date.now() + wait);
        if (refused) await new Promise((resolve) => this._retryOn(resolve, abort));
        else await new Promise((resolve) => this._waitFor(wait, resolve, abort));
      } finally {
        clearTimeout(watchdog);
        abort.signal.removeEventListener("abort", cut);
      }
    }
  }

  /** Try again now, rather than later. */
  retry() {
    this._wake?.();
  }

  _retryOn(resolve, abort) {
    this._wake = resolve;
    abort.signal.addEventListener("abort", resolve);
  }

  _waitFor(ms, resolve, abort) {
    this._retryOn(resolve, abort);
    setTimeout(resolve, ms);
  }

  _take(frame) {
    this.frame = frame;
    this.nFrames += 1;
    if (frame.map) this._takeMap(frame.map);
    this._tell(frame);
  }

  _takeMap(map) {
    if (this.cells.length !== map.cells) this.cells = new Uint16Array(map.cells);
    this.blocksPerCell = map.blocks_per_cell;
    for (const [page, encoded] of map.pages) {
      const text = atob(encoded);
      const start = page * map.page_cells;
      for (let i = 0; i < text.length; i += 2) {
        this.cells[start + i / 2] = text.charCodeAt(i) | (text.charCodeAt(i + 1) << 8);
      }
    }
    if (map.pages.length) this.mapVersion += 1;
  }
}
