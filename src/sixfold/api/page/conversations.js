// Conversations, kept in this browser and nowhere else: the newest MAX of them, as far as they fit into MAX_CHARS.

import { keep, kept } from "./dom.js";

const PLACE = "sixfold.conversations";
const MAX = 50;
const MAX_CHARS = 2_000_000;
const TITLE_CHARS = 48;

export class Conversations {
  constructor() {
    this._removed = new Set();
    this.all = read();
    this.current = this.all[0] ?? this.add();
  }

  add() {
    const conversation = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "New chat", system: "", messages: [] };
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
    if (this.current.id === id) this.current = this.all[0] ?? this.add();
    this.save();
  }

  /** A conversation has changed. What another tab has kept meanwhile stays; what does not fit is not kept: the oldest
   *  first, and one that is too long by itself. It lives as long as the page. */
  save() {
    const first = this.current.messages.find((message) => message.role === "user");
    if (first) this.current.title = shorten(first.content);
    const here = new Set(this.all.map((one) => one.id));
    const others = read().filter((one) => !here.has(one.id) && !this._removed.has(one.id));
    this.all = [this.current, ...this.all.filter((other) => other !== this.current), ...others].slice(0, MAX);
    const texts = [];
    let room = MAX_CHARS;
    for (const conversation of this.all) {
      if (!conversation.messages.length && !conversation.system) continue;
      const text = JSON.stringify(conversation, (name, value) => (name === "tokens" ? undefined : value));
      if (text.length >= room) continue;
      room -= text.length + 1;
      texts.push(text);
    }
    while (!keep(PLACE, `[${texts.join(",")}]`) && texts.length) texts.pop();
  }
}

/** What is kept, as far as it is what this page has written. */
function read() {
  try {
    return JSON.parse(kept(PLACE) ?? "[]").filter(isConversation);
  } catch {
    return [];
  }
}

function isConversation(one) {
  const texts = [one?.id, one?.title, one?.system];
  return texts.every((text) => typeof text === "string") && Array.isArray(one.messages) && one.messages.every(isMessage);
}

function isMessage(one) {
  const known = one?.role === "user" || one?.role === "assistant";
  return known && typeof one.content === "string" && [one.note, one.reasoning, one.figures].every((text) => text === undefined || typeof text === "string");
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
