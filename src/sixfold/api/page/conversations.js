// Conversations, kept in this browser and nowhere else: the newest MAX of them, as far as they fit into MAX_CHARS.

import { keep, kept } from "./dom.js";

const PLACE = "sixfold.conversations";
const MAX = 50;
const MAX_CHARS = 2_000_000;
const TITLE_CHARS = 48;

export class Conversations {
  /** `onChange(isCurrent)`: another tab has kept something, and whether the current conversation is another one now. */
  constructor(onChange) {
    this._removed = new Set();
    this._kept = new Set(); // ids that were there when this tab looked last
    this._onChange = onChange;
    this.busy = null; // one that is being answered: another tab's version of it does not replace it
    this.all = this._read();
    this.current = this.all[0] ?? this.add();
    addEventListener("storage", (event) => (event.key === PLACE || event.key === null) && this._takeOver());
  }

  add() {
    const conversation = { id: name(), title: "New chat", system: "", messages: [] };
    this.all.unshift(conversation);
    this.current = conversation;
    return conversation;
  }

  choose(id) {
    this.current = this.all.find((conversation) => conversation.id === id) ?? this.current;
  }

  remove(id) {
    this._removed.add(id);
    this.all = this.all.filter((conversation) => conversation.id !== id);
    const wasCurrent = this.current.id === id;
    if (wasCurrent) this.current = this.all[0] ?? this.add();
    this._write();
    return wasCurrent;
  }

  /** A conversation has changed. What another tab has kept meanwhile stays: where it went on with this very
   *  conversation, there are two from now on. What does not fit is not kept: the oldest first, and one that is too long
   *  by itself. It lives as long as the page. */
  save(changed = this.current) {
    if (this._removed.has(changed.id)) return;
    const first = changed.messages.find((message) => message.role === "user");
    if (first) changed.title = shorten(first.content);
    const there = this._read().find((one) => one.id === changed.id);
    if (there && there.rev !== changed.rev) changed.id = name();
    changed.rev = name();
    this.all = [this.current, ...this.all.filter((other) => other !== this.current)];
    this._write();
  }

  _write() {
    const here = new Set(this.all.map((one) => one.id));
    const others = this._read().filter((one) => !here.has(one.id) && !this._removed.has(one.id));
    this.all = [...this.all, ...others].slice(0, MAX);
    const texts = [];
    let room = MAX_CHARS;
    for (const conversation of this.all) {
      if (!conversation.messages.length && !conversation.system) continue;
      const text = JSON.stringify(conversation, (key, value) => (key === "tokens" ? undefined : value));
      if (text.length >= room) continue;
      room -= text.length + 1;
      texts.push(text);
    }
    while (!keep(PLACE, `[${texts.join(",")}]`) && texts.length) texts.pop();
    this._read();
  }

  /** What another tab has kept replaces what is here, except what is being changed, and what was never kept. */
  _takeOver() {
    const before = this.current;
    const old = this._kept;
    const mine = this.all.filter((one) => !old.has(one.id) || one === this.busy);
    const ids = new Set(mine.map((one) => one.id));
    const known = new Map(this.all.map((one) => [one.id, one]));
    const theirs = this._read().filter((one) => !ids.has(one.id) && !this._removed.has(one.id));
    // One that is the same keeps its object, and with it what is not kept: its tokens.
    this.all = [...mine, ...theirs.map((one) => (known.get(one.id)?.rev === one.rev ? (known.get(one.id) ?? one) : one))];
    this.current = this.all.find((one) => one.id === before.id) ?? this.all[0] ?? this.add();
    this._onChange(this.current !== before);
  }

  /** What is kept, as far as it is what this page has written. */
  _read() {
    let found = [];
    try {
      found = JSON.parse(kept(PLACE) ?? "[]").filter(isConversation).map(known);
    } catch {
      // somebody else's words
    }
    this._kept = new Set(found.map((one) => one.id));
    return found;
  }
}

function name() {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}

function isConversation(one) {
  const texts = [one?.id, one?.title, one?.system, one?.rev ?? ""];
  return texts.every((text) => typeof text === "string") && Array.isArray(one.messages) && one.messages.every(isMessage);
}

/** The fields that this page knows, and no other ones. */
function known({ id, title, system, rev, messages }) {
  const fields = ({ role, content, note, kind, reasoning, figures }) => ({ role, content, note, kind, reasoning, figures });
  return { id, title, system, rev, messages: messages.map(fields) };
}

function isMessage(one) {
  const known = one?.role === "user" || one?.role === "assistant";
  return known && typeof one.content === "string" && [one.note, one.kind, one.reasoning, one.figures].every((text) => text === undefined || typeof text === "string");
}

function shorten(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1)}…` : line || "New chat";
}

/** Hand a conversation over as a file, in the shape of a request's `messages`. */
export function exportFile(conversation) {
  const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
  if (conversation.system) messages.unshift({ role: "system", content: conversation.system });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ messages }, null, 2)], { type: "application/json" }));
  link.download = `${conversation.title.replace(/[^\w-]+/g, "-").slice(0, 40) || "chat"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
