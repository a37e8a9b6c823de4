// How to answer: fields that are left empty are left out of the request, so that the server's own defaults hold. On a
// first visit two are filled in, as `sixfold chat` does: at temperature 1, OpenAI's default, a small model rambles.

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
    const isFirst = !kept(PLACE);
    this._load();
    this._isTouched = false;
    if (isFirst) this._suggest();
  }

  /** Fills in FIRST, unless somebody was quicker. What is not known (health is for admins) is left to the server. */
  async _suggest() {
    try {
      const { sampling_defaults: own } = await (await call("/debug/health", { ask: false })).json();
      if (this._isTouched) return;
      for (const [name, value] of Object.entries(FIRST)) if (!(name in own)) this._fields[name].value = value;
      this._save();
    } catch {
      // then the fields stay empty
    }
  }

  _number(name, label, min, max, step, help) {
    const input = make("input", { type: "number", min, max, step: step < 1 ? "any" : step, placeholder: "default", title: help });
    for (const [key, value] of [["min", min], ["max", max]]) if (value !== null) input.setAttribute(key, value);
    input.addEventListener("input", () => this._save());
    this._fields[name] = input;
    return make("label", { title: help }, label, input);
  }

  /** The fields of a request. Throws SyntaxError where the schema is not JSON. */
  request() {
    const body = {};
    for (const [name, input] of Object.entries(this._fields)) if (input.value !== "") body[name] = Number(input.value);
    const stop = this.stop.value.split("\n").filter((line) => line !== "");
    if (stop.length) body.stop = stop;
    if (this.logprobs.checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    if (this.useSchema.checked) {
      const schema = JSON.parse(this.schema.value);
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    }
    return body;
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
    this._save();
  }

  _save() {
    this._isTouched = true;
    const values = Object.fromEntries(Object.entries(this._fields).map(([name, input]) => [name, input.value]));
    const more = { stop: this.stop.value, logprobs: this.logprobs.checked, useSchema: this.useSchema.checked, schema: this.schema.value };
    keep(PLACE, JSON.stringify({ values, ...more }));
  }

  _load() {
    try {
      const { values = {}, stop, logprobs = true, useSchema = false, schema } = JSON.parse(kept(PLACE) ?? "{}");
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
