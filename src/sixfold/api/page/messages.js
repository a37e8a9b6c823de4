// One message of a conversation as an element: text as it comes, code in boxes once it is complete, tokens with what
// else could have stood there.

import { button, make, say } from "./dom.js";

const MANY = 4000; // tokens: beyond it an answer is text, unless its tokens are asked for

const NAMES = { user: "You", assistant: "Answer" };

/** Text with its fenced code set apart. */
function laidOut(text) {
  const parts = text.split(/^```([\w+-]*)[^\S\n]*\n([\s\S]*?)(?:^```[^\S\n]*$\n?|$(?![\s\S]))/m);
  const nodes = [];
  for (let i = 0; i < parts.length; i += 3) {
    if (parts[i]) nodes.push(make("p", { class: "text", dir: "auto" }, parts[i].replace(/^\n+|\n+$/g, "")));
    if (i + 2 < parts.length) nodes.push(make("pre", { tabindex: "0", "aria-label": "Code" }, make("code", {}, parts[i + 2])));
  }
  return nodes;
}

/** Five steps of how likely a token was, for its tint. */
function step(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 4 : p > 0.6 ? 3 : p > 0.3 ? 2 : p > 0.1 ? 1 : 0;
}

function percent(logprob) {
  const p = 100 * Math.exp(logprob);
  return `${p.toFixed(p < 9.95 ? (p < 0.095 ? 3 : 1) : 0)} %`;
}

function visible(token) {
  return token === "" ? "(end)" : token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}

/** The one box that says what else could have stood there. */
class Alternatives {
  constructor() {
    this.element = make("div", { class: "alternatives", role: "tooltip", id: "alternatives", hidden: true });
  }

  show(token, at) {
    if (!this.element.isConnected) document.body.append(this.element);
    const rows = [...token.top_logprobs];
    if (!rows.some((row) => row.token === token.token)) rows.push(token);
    this.element.replaceChildren(
      ...rows.map((row) => {
        const bar = make("span", { class: "bar" });
        bar.style.width = `${(100 * Math.exp(row.logprob)).toFixed(1)}%`;
        const drawn = row.token === token.token;
        return make(
          "div",
          { class: drawn ? "row drawn" : "row" },
          make("code", {}, visible(row.token)),
          make("span", { class: "meter" }, bar),
          make("span", { class: "number" }, percent(row.logprob)),
        );
      }),
    );
    this.element.hidden = false;
    const box = at.getBoundingClientRect();
    const own = this.element.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - own.width - 8));
    const below = box.bottom + 6 + own.height < innerHeight;
    this.element.style.left = `${left + scrollX}px`;
    this.element.style.top = `${(below ? box.bottom + 6 : box.top - own.height - 6) + scrollY}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

const alternatives = new Alternatives();

export class MessageView {
  /** `actions(message)` gives the buttons below a message. */
  constructor(message, actions) {
    this.message = message;
    this._actions = actions;
    this._tail = null;
    this.body = make("div", { class: "body" });
    this.note = make("p", { class: "hint", hidden: true });
    this.foot = make("p", { class: "foot" });
    this.element = make(
      "article",
      { class: `message ${message.role}`, "aria-label": NAMES[message.role] },
      make("h3", {}, NAMES[message.role]),
      this.body,
      this.note,
      this.foot,
    );
    this.body.addEventListener("mouseover", (event) => this._point(event.target));
    this.body.addEventListener("mouseleave", () => alternatives.hide());
    this.body.addEventListener("keydown", (event) => this._key(event));
    this.body.addEventListener("focusout", () => alternatives.hide());
    this.body.addEventListener("click", (event) => this._point(event.target));
    this.finish();
  }

  /** A piece of a stream. */
  append(text, tokens) {
    if (this._tail === null) {
      this._tail = make("p", { class: "text live", dir: "auto" });
      this.body.replaceChildren(this._tail);
      this._node = document.createTextNode("");
      this._tail.append(this._node);
    }
    if (!tokens) return this._node.appendData(text);
    let rest = "";
    for (const token of tokens) {
      token.text = this._decoder.decode(new Uint8Array(token.bytes), { stream: true });
      if (this._count < MANY) this._tail.insertBefore(this._token(token, this._count), this._node);
      else rest += token.text;
      this._count += 1;
    }
    this._node.appendData(rest);
  }

  begin() {
    // Tokens may be pieces of a character: their bytes are put together here.
    this._decoder = new TextDecoder();
    this._count = 0;
    this._tail = null;
    this.body.replaceChildren(make("p", { class: "text live waiting" }, "…"));
    this.foot.replaceChildren();
    this.element.setAttribute("aria-busy", "true");
  }

  /** What is complete, in its final form. */
  finish() {
    const { content, reasoning, tokens, note, role } = this.message;
    this._tail = null;
    this.element.removeAttribute("aria-busy");
    const parts = [];
    if (reasoning) parts.push(make("details", {}, make("summary", {}, "Thoughts"), make("p", { class: "text", dir: "auto" }, reasoning)));
    const isLaidOut = content.includes("```") || tokens?.length > MANY;
    if (tokens?.length && (this._wantsTokens ?? !isLaidOut)) {
      const text = make("p", { class: "text tokens", dir: "auto", tabindex: "0", role: "group", "aria-label": "Tokens: arrow keys show what else was likely" });
      tokens.forEach((token, index) => text.append(this._token(token, index)));
      parts.push(text);
    } else {
      parts.push(...laidOut(content));
    }
    if (!content && !parts.length && role === "assistant" && !note) parts.push(make("p", { class: "hint" }, "An empty answer."));
    this.body.replaceChildren(...parts);
    this.say(note ?? "", this.message.kind ?? "");
    this.foot.replaceChildren(...this._actions(this.message));
    if (tokens?.length && isLaidOut) {
      const other = this._wantsTokens ? "Show text" : "Show tokens";
      const turn = () => {
        this._wantsTokens = !this._wantsTokens;
        this.finish();
      };
      this.foot.append(button(other, turn, { class: "quiet" }));
    }
  }

  /** A word about the message, below it. */
  say(words, kind = "") {
    say(this.note, words);
    this.note.hidden = !words;
    this.note.dataset.kind = kind;
  }

  _token(token, index) {
    return make("span", { class: `token p${step(token.logprob)}`, "data-index": String(index) }, token.text);
  }

  _point(element) {
    const token = this.message.tokens?.[element.dataset?.index];
    if (token && element.classList.contains("token")) alternatives.show(token, element);
    else alternatives.hide();
  }

  _key(event) {
    const tokens = [...this.body.querySelectorAll(".tokens > .token")];
    if (!tokens.length || !event.target.classList.contains("tokens")) return;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
    if (event.key === "Escape") return alternatives.hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    const old = tokens.findIndex((token) => token.classList.contains("chosen"));
    const next = Math.max(0, Math.min(tokens.length - 1, old + moves[event.key]));
    tokens[old]?.classList.remove("chosen");
    tokens[next].classList.add("chosen");
    this._point(tokens[next]);
  }
}

/** A message that is being changed: its text in a field, and what to do with it. */
export function editor(text, onDone, onCancel) {
  const field = make("textarea", { rows: Math.min(12, text.split("\n").length + 1), "aria-label": "Change the message" });
  field.value = text;
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") onCancel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onDone(field.value);
  });
  const box = make(
    "div",
    { class: "editor" },
    field,
    make("p", { class: "row" }, button("Send again", () => onDone(field.value), { class: "main" }), button("Cancel", onCancel)),
  );
  return [box, field];
}
