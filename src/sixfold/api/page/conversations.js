// Conversations, kept in this browser and nowhere else: the newest MAX of them, as far as they fit into MAX_CHARS.

const PLACE = "sixfold.conversations";
const MAX = 50;
const MAX_CHARS = 2_000_000;
const TITLE_CHARS = 48;

export class Conversations {
  constructor() {
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
    this.all = this.all.filter((conversation) => conversation.id !== id);
    if (this.current.id === id) this.current = this.all[0] ?? this.add();
    this.save();
  }

  /** A conversation has changed. What does not fit is forgotten, the oldest first. */
  save() {
    const first = this.current.messages.find((message) => message.role === "user");
    if (first) this.current.title = shorten(first.content);
    this.all = [this.current, ...this.all.filter((other) => other !== this.current)].slice(0, MAX);
    for (;;) {
      const kept = this.all.filter((conversation) => conversation.messages.length || conversation.system);
      const text = JSON.stringify(kept, (name, value) => (name === "tokens" ? undefined : value));
      try {
        if (text.length > MAX_CHARS) throw new RangeError("too large");
        localStorage.setItem(PLACE, text);
        return;
      } catch {
        if (this.all.length <= 1) return; // it lives as long as the page
        this.all.pop();
      }
    }
  }
}

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return found.filter((one) => typeof one.id === "string" && Array.isArray(one.messages));
  } catch {
    return [];
  }
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
