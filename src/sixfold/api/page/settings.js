// How to answer: fields that are left empty are left out of the request, so that the server's own defaults hold. On a
// first visit, as soon as the server answers this page, two are filled in, as `sixfold chat` does: at temperature 1, OpenAI's default, a small model rambles.

import { button, keep, kept, make, say } from "./dom.js";
import { call } from "./server.js";

const PLACE = "sixfold.settings";

const FIRST = { temperature: 0.7, top_p: 0.95 }; // where the model's files recommend nothing

const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.1, "0 always takes the likeliest token"],
  ["top_p", "Top p", 0, 1, 0.05, "draw from the likeliest tokens that add up to this"],
  ["top_k", "Top k", -1, null, 1, "draw from so many tokens; 0 is off"],
  ["min_p", "Min p", 0, 1, 0.01, "forget tokens below this part of the likeliest one's probability"],
  ["max_tokens", "Longest answer", 1, null, 1, "in tokens; empty: what the context leaves"],
  ["seed", "Seed", null, null, 1, "equal requests with equal seeds get equal answers"],
  ["repetition_penalty", "Repetition penalty", 0.01, 2, 0.05, "counts prompt and answer; 1 is off"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "counts the answer; 0 is off"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "counts the answer; 0 is off"],
];

const EXAMPLE = JSON.stringify(
  { type: "object", properties: { answer: { type: "string" }, sure: { type: "boolean" } }, required: ["answer", "sure"] },
  null,
  2,
);

export class Settings {
  /** `onSystem(text)`: the system prompt was changed. */
  constructor(onSystem) {
    this._fields = {};
    this.system = make("textarea", { rows: 3, placeholder: "You are …", oninput: () => onSystem(this.system.value) });
    this.stop = make("textarea", { rows: 2, placeholder: "one in each line", oninput: () => this._save() });
    this.logprobs = make("input", { type: "checkbox", checked: true, onchange: () => this._save() });
    this.useSchema = make("input", { type: "checkbox", onchange: () => this._schemaChanged() });
    this.schema = make("textarea", { rows: 9, class: "code", spellcheck: "false", oninput: () => this._schemaChanged() });
    this.schema.value = EXAMPLE;
    this.schemaState = make("p", { class: "hint", id: "schema-state", role: "status" });
    this.schema.setAttribute("aria-describedby", "schema-state");
    this.element = make(
      "form",
      { class: "settings", "aria-label": "How to answer", onsubmit: (event) => event.preventDefault() },
      make("label", {}, "System prompt", this.system),
      make("div", { class: "numbers" }, ...NUMBERS.map((one) => this._number(...one))),
      make("label", {}, "Stop at", this.stop),
      make("label", { class: "check" }, this.logprobs, "Show how likely each token was"),
      make("p", { class: "hint" }, "Underlined: unlikely, red the most. Point at a word to see what else could have stood there."),
      make("label", { class: "check" }, this.useSchema, "Answer with JSON of this schema"),
      (this.schemaBox = make(
        "div",
        { class: "schema" },
        make("label", {}, "JSON schema", this.schema),
        this.schemaState,
        button("Check with the server", () => this.checkSchema()),
      )),
      button("Use the server's defaults", () => this._clear(), { class: "quiet" }),
    );
    this._isNew = true; // FIRST is not filled in yet, and nobody has chosen anything in its place
    this._load();
  }

  /** Fill in what a first visit has, if the server tells what it needs for it: it may want a key before. */
  suggest() {
    if (this._isNew) this._fillIn({ ask: false }).catch(() => {});
  }

  /** The same before a first request, which must not go without it: a key is asked for. Returns what was filled in, as
   *  fields of the request. Throws ServerError, or AbortError where `signal` was raised. */
  async suggested(signal) {
    if (!this._isNew) return {};
    await this._fillIn({ signal });
    return this._numbers();
  }

  async _fillIn(how) {
    const { data } = await (await call("/v1/models", how)).json();
    if (!this._isNew) return;
    this._isNew = false;
    for (const [name, value] of Object.entries(FIRST)) if (!(name in data[0].sampling_defaults)) this._fields[name].value = value;
    this._save();
  }

  _number(name, label, min, max, step, help) {
    const input = make("input", { type: "number", min, max, step: step < 1 ? "any" : step, placeholder: "default", title: help });
    for (const [key, value] of [["min", min], ["max", max]]) if (value !== null) input.setAttribute(key, value);
    input.addEventListener("input", () => {
      if (name in FIRST) this._isNew = false;
      this._save();
    });
    this._fields[name] = input;
    return make("label", { title: help }, label, input);
  }

  /** The fields of a request. Throws SyntaxError where the schema is not JSON. */
  request() {
    const body = this._numbers();
    const stop = this.stop.value.split("\n").filter((line) => line !== "");
    if (stop.length) body.stop = stop;
    if (this.logprobs.checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    if (this.useSchema.checked) {
      const schema = JSON.parse(this.schema.value);
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    }
    return body;
  }

  _numbers() {
    const filled = Object.entries(this._fields).filter(([, input]) => input.value !== "");
    return Object.fromEntries(filled.map(([name, input]) => [name, Number(input.value)]));
  }

  showSchemaFault(words) {
    say(this.schemaState, words);
    this.schemaState.dataset.kind = "bad";
    this.schema.setAttribute("aria-invalid", "true");
  }

  /** The server knows which schemas it can hold an answer to: ask for one token under this one. */
  async checkSchema() {
    try {
      const schema = JSON.parse(this.schema.value);
      const body = {
        messages: [{ role: "user", content: "-" }],
        max_tokens: 1,
        response_format: { type: "json_schema", json_schema: { name: "answer", schema } },
      };
      await call("/v1/chat/completions", { method: "POST", body });
      say(this.schemaState, "The server takes this schema.");
      this.schemaState.dataset.kind = "good";
      this.schema.removeAttribute("aria-invalid");
    } catch (error) {
      this.showSchemaFault(error instanceof SyntaxError ? `Not JSON: ${error.message}` : error.message);
    }
  }

  _schemaChanged() {
    this.schemaBox.hidden = !this.useSchema.checked;
    say(this.schemaState, "");
    delete this.schemaState.dataset.kind;
    this.schema.removeAttribute("aria-invalid");
    try {
      JSON.parse(this.schema.value);
    } catch (error) {
      this.showSchemaFault(`Not JSON: ${error.message}`);
    }
    this._save();
  }

  _clear() {
    for (const input of Object.values(this._fields)) input.value = "";
    this.stop.value = "";
    this._isNew = false;
    this._save();
  }

  _save() {
    const values = Object.fromEntries(Object.entries(this._fields).map(([name, input]) => [name, input.value]));
    const more = { isNew: this._isNew, stop: this.stop.value, logprobs: this.logprobs.checked, useSchema: this.useSchema.checked, schema: this.schema.value };
    keep(PLACE, JSON.stringify({ values, ...more }));
  }

  _load() {
    try {
      const { isNew = false, values = {}, stop, logprobs = true, useSchema = false, schema } = JSON.parse(kept(PLACE) ?? '{"isNew":true}');
      this._isNew = isNew === true;
      for (const [name, input] of Object.entries(this._fields)) input.value = values[name] ?? "";
      this.stop.value = typeof stop === "string" ? stop : "";
      this.logprobs.checked = logprobs === true;
      this.useSchema.checked = useSchema === true;
      this.schema.value = typeof schema === "string" ? schema : EXAMPLE;
    } catch {
      // somebody else's words under this name: the defaults will do
    }
    this._schemaChanged();
  }
}
