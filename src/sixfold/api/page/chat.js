// The chat: one conversation at a time, an answer as it is made, and what can be done about it.

import { Conversations, exportFile } from "./conversations.js";
import { button, count, make, say, sentence } from "./dom.js";
import { MessageView, editor } from "./messages.js";
import { ServerError, backoff, call, events, notReady, pause } from "./server.js";
import { Settings } from "./settings.js";

const SILENCE_MS = 1500; // of a stream, until the server is asked how it is
const SHOW_MS = 16;
const SHOW_COST = 4; // of a long answer each piece is dear to lay out: the pause is so many times as long
const LEFT = "Cut off here: the page was left.";

export class Chat {
  /** `showState(word, kind, title)` puts the server's state into the page's head. */
  constructor(root, showState) {
    this._showState = showState;
    this._store = new Conversations((isOther) => (isOther ? this._draw() : this._drawList()));
    this._running = null; // AbortController of the answer that is being made
    this._watching = null;
    this._views = [];
    this._settings = new Settings((text) => {
      this._store.current.system = text;
      this._store.save();
    });
    this._list = make("ul", { class: "conversations" });
    this._log = make("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: "0" });
    this._banner = make("p", { class: "banner", role: "alert", hidden: true });
    this._input = make("textarea", { rows: 2, placeholder: "Ask something", "aria-label": "Message", id: "message" });
    this._input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this._send();
      }
    });
    this._sendButton = button("Send", () => this._send(), { class: "main", id: "send" });
    this._stopButton = button("Stop", () => this._running?.abort(), { id: "stop", title: "Escape", hidden: true });
    root.addEventListener("keydown", (event) => event.key === "Escape" && this._running?.abort());
    addEventListener("pagehide", () => this._leave());
    addEventListener("pageshow", () => (this._leaving = false));
    this._leaving = false;
    this._unshown = []; // pieces of the answer that are not in the document yet
    this._announce = make("p", { class: "unseen", role: "status" });
    const settings = make("details", { class: "side how" }, make("summary", {}, "How to answer"), this._settings.element);
    const list = make(
      "details",
      { class: "side which" },
      make("summary", {}, "Conversations"),
      button("New chat", () => this._new(), { class: "main wide", id: "new-chat" }),
      this._list,
      make("p", { class: "hint" }, "Kept in this browser only."),
    );
    // On a wide screen there is room for both; on a phone they open on request.
    settings.open = list.open = matchMedia("(min-width: 60rem)").matches;
    root.append(
      list,
      make(
        "div",
        { class: "talk" },
        this._banner,
        this._log,
        this._announce,
        make("form", { class: "composer", onsubmit: (event) => event.preventDefault() }, this._input, make("div", { class: "row" }, this._sendButton, this._stopButton)),
      ),
      settings,
    );
    this._draw();
  }

  show() {
    this._settings.suggest();
    this._watchState();
  }

  hide() {
    this._watching?.abort();
    this._watching = null;
  }

  // ---- conversations ------------------------------------------------------------------------------------------------

  _draw() {
    const { current } = this._store;
    this._settings.system.value = current.system;
    this._drawList();
    this._views = current.messages.map((message) => new MessageView(message, (one) => this._actions(one)));
    const empty = make("p", { class: "empty" }, "Nothing has been said yet. What you write goes to this server and nowhere else.");
    this._log.replaceChildren(...(this._views.length ? this._views.map((view) => view.element) : [empty]));
    this._log.scrollTop = this._log.scrollHeight;
  }

  _drawList() {
    const { current, all } = this._store;
    this._list.replaceChildren(
      ...all.map((one) =>
        make(
          "li",
          {},
          button(one.title, () => this._choose(one.id), { class: "name", "aria-current": one === current ? "true" : null }),
          button("Save", () => exportFile(one), { class: "quiet", "aria-label": `Save “${one.title}” as a file` }),
          button("Delete", () => this._remove(one.id), { class: "quiet", "aria-label": `Delete “${one.title}”` }),
        ),
      ),
    );
  }

  _new() {
    this._running?.abort();
    if (this._store.current.messages.length) this._store.add();
    this._draw();
    this._input.focus();
  }

  _choose(id) {
    this._running?.abort();
    this._store.choose(id);
    this._draw();
  }

  _remove(id) {
    if (this._store.current.id === id) this._running?.abort();
    if (this._store.remove(id)) this._draw();
    else this._drawList();
    this._list.querySelector("button")?.focus();
  }

  /** The page is closed or loaded anew: what has come of an answer is kept. */
  _leave() {
    const { busy } = this._store;
    if (!busy) return;
    this._leaving = true;
    busy.messages.at(-1).note = LEFT;
    this._store.save(busy);
  }

  _actions(message) {
    if (this._running) return [];
    if (message.role === "user") return [button("Edit", () => this._edit(message), { class: "quiet" })];
    const found = [];
    const last = message === this._store.current.messages.at(-1);
    if (last) found.push(button("Regenerate", () => this._regenerate(), { class: "quiet", id: "regenerate" }));
    if (message.content) found.push(button("Copy", () => navigator.clipboard?.writeText(message.content), { class: "quiet" }));
    if (message.figures) found.push(make("span", { class: "hint" }, message.figures));
    return found;
  }

  _edit(message) {
    const { messages } = this._store.current;
    const view = this._views[messages.indexOf(message)];
    const [box, field] = editor(
      message.content,
      (text) => {
        if (!text.trim()) return;
        messages.length = messages.indexOf(message);
        this._ask(text);
      },
      () => {
        view.finish();
        view.foot.querySelector("button")?.focus();
      },
    );
    view.body.replaceChildren(box);
    view.foot.replaceChildren();
    field.focus();
  }

  // ---- asking -------------------------------------------------------------------------------------------------------

  _send() {
    const text = this._input.value;
    if (!text.trim() || this._running) return;
    this._input.value = "";
    this._ask(text);
  }

  _ask(text) {
    this._store.current.messages.push({ role: "user", content: text });
    this._answer();
  }

  _regenerate() {
    const { messages } = this._store.current;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    this._answer();
  }

  async _answer() {
    const conversation = this._store.current;
    const message = { role: "assistant", content: "" };
    let body;
    try {
      body = this._request(conversation);
    } catch (error) {
      this._settings.showSchemaFault(`Not JSON: ${error.message}`);
      Object.assign(message, { kind: "bad", note: `Not sent: the schema is not JSON (${error.message}).` });
    }
    conversation.messages.push(message);
    if (!body) {
      this._store.save();
      this._draw();
      return;
    }
    const abort = (this._running = new AbortController());
    this._store.busy = conversation;
    this._store.save();
    const hadFocus = this._sendButton.matches(":focus-visible") || this._log.querySelector("button:focus-visible") !== null;
    this._draw();
    const view = this._views.at(-1);
    view.begin();
    this._showMs = SHOW_MS;
    this._buttons(hadFocus);
    try {
      Object.assign(body, await this._settings.suggested(abort.signal));
      await this._stream(body, message, view, abort.signal);
    } catch (error) {
      this._explain(error, message);
    } finally {
      this._running = null;
      clearTimeout(this._showing);
      this._showPieces(view);
      this._buttons(this._stopButton.matches(":focus-visible"));
      this._store.save(conversation);
      this._store.busy = null;
      const atEnd = this._isAtEnd();
      // Also those of another conversation that was chosen meanwhile: what can be done with them depends on it.
      for (const one of this._views) if (one.message === message || one.message.role === "user" || one === this._views.at(-1)) one.finish();
      if (atEnd) this._log.scrollTop = this._log.scrollHeight;
      if (message.kind !== "bad") say(this._announce, message.note ?? "The answer is complete.");
    }
  }

  _request(conversation) {
    const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
    if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
    return { messages, stream: true, stream_options: { include_usage: true }, ...this._settings.request() };
  }

  async _stream(body, message, view, signal) {
    const began = performance.now();
    let first = 0;
    let heard = began;
    const quiet = setInterval(() => performance.now() - heard > SILENCE_MS && this._askWhy(view, () => heard), 1000);
    try {
      const response = await call("/v1/chat/completions", { method: "POST", body, signal });
      let done = false;
      for await (const data of events(response, () => (heard = performance.now()))) {
        if (data === "[DONE]") {
          done = true;
          break;
        }
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.message, { status: 500, code: event.error.code });
        view.say("");
        if (!first) this._linkTo(response.headers.get("x-request-id") ?? event.id, view);
        if (event.usage && !event.choices.length) message.usage = event.usage;
        for (const choice of event.choices) {
          first ||= performance.now();
          this._take(choice, message, view);
        }
      }
      if (!done) throw new ServerError("the connection was lost");
    } finally {
      clearInterval(quiet);
    }
    const { usage } = message;
    if (usage) {
      const seconds = (performance.now() - first) / 1000;
      const pace = usage.completion_tokens > 1 && seconds > 0 ? `, ${count((usage.completion_tokens - 1) / seconds)} a second` : "";
      const cached = usage.prompt_tokens_details?.cached_tokens;
      message.figures = `${count(usage.prompt_tokens)} tokens read${cached ? ` (${count(cached)} known already)` : ""}, ${count(usage.completion_tokens)} written${pace}`;
      delete message.usage;
    }
  }

  _take(choice, message, view) {
    const { content, reasoning_content: thought } = choice.delta ?? {};
    if (thought) message.reasoning = (message.reasoning ?? "") + thought;
    const tokens = choice.logprobs?.content;
    if (tokens?.length) (message.tokens ??= []).push(...tokens);
    if (content || tokens?.length) {
      message.content += content ?? "";
      this._unshown.push([content ?? "", tokens]);
      this._showing ??= setTimeout(() => this._showPieces(view), this._showMs);
    }
    if (choice.finish_reason === "length") message.note = "Cut at its longest length.";
  }

  /** What has come since the last time, in one go: a document is laid out for each look at its height. */
  _showPieces(view) {
    const began = performance.now();
    const atEnd = this._isAtEnd();
    const tokens = this._unshown.flatMap(([, some]) => some ?? []);
    if (this._unshown.length) view.append(this._unshown.map(([text]) => text).join(""), tokens.length ? tokens : null);
    this._unshown = [];
    this._showing = null;
    if (atEnd) this._log.scrollTop = this._log.scrollHeight;
    this._showMs = Math.max(SHOW_MS, SHOW_COST * (performance.now() - began));
  }

  _isAtEnd() {
    return this._log.scrollHeight - this._log.scrollTop - this._log.clientHeight < 60;
  }

  /** While an answer is made, its request can be followed in the anatomy. */
  _linkTo(id, view) {
    view.foot.replaceChildren(make("a", { href: `#anatomy/${encodeURIComponent(id)}`, class: "follow" }, "Follow this request"));
  }

  _explain(error, message) {
    if (error.name === "AbortError" || this._leaving) {
      message.note = this._leaving ? LEFT : "Stopped.";
      return;
    }
    message.kind = "bad";
    if (!(error instanceof ServerError)) {
      message.note = `The page failed: ${error.message}`;
      throw error;
    }
    message.note = sentence(error.message);
    if (error.param?.startsWith("response_format")) this._settings.showSchemaFault(error.message);
    if (error.status === 0) {
      message.note = message.content ? "The connection was lost here." : "The server cannot be reached.";
      this._watchState();
    }
  }

  /** A stream is silent: perhaps the engine is being restarted, and the answer will go on. */
  async _askWhy(view, heard) {
    const before = heard();
    let words;
    try {
      const reason = await notReady();
      words = reason ? `${sentence(reason)} The answer will go on.` : "Waiting for the server.";
    } catch {
      words = "The server cannot be reached.";
    }
    if (this._running && heard() === before) view.say(words);
  }

  /** `hadFocus`: of a button that goes; who works with the keyboard goes on in the field below. */
  _buttons(hadFocus) {
    this._sendButton.hidden = this._running !== null;
    this._stopButton.hidden = this._running === null;
    if (hadFocus) this._input.focus();
  }

  // ---- how the server is --------------------------------------------------------------------------------------------

  /** Asks now and then whether the server takes requests; often while it does not. */
  async _watchState() {
    this._watching?.abort();
    const { signal } = (this._watching = new AbortController());
    for (let tries = 0; !signal.aborted; ) {
      let wait = 10_000;
      try {
        const reason = document.hidden ? null : await notReady();
        if (signal.aborted) return;
        if (reason === "") {
          if (tries && this._showBanner("Connected again.", "good")) setTimeout(() => this._showBanner(""), 3000);
          tries = 0;
          this._showState("ready", "good");
        } else if (reason !== null) {
          wait = backoff(tries++);
          this._showState(reason, "wait");
          this._showBanner(sentence(reason), "wait");
        }
      } catch {
        if (signal.aborted) return;
        wait = backoff(tries++);
        this._showState("connection lost", "bad");
        this._showBanner(`The connection is lost. Next try in ${Math.ceil(wait / 1000)} s.`, "bad");
      }
      await pause(wait, signal);
    }
  }

  _showBanner(words, kind = "") {
    say(this._banner, words);
    this._banner.hidden = !words;
    this._banner.dataset.kind = kind;
    return true;
  }
}
