// Making and changing elements. Text goes in as text: nothing that a model or a server says is ever read as markup.

/** An element: `make("p", {class: "note", onclick: f}, "text", child)`. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set text only where it differs: an unchanged node costs no layout. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Words of the server as a sentence of this page: "no key" -> "No key." */
export function sentence(words) {
  return words && `${words[0].toUpperCase()}${words.slice(1).replace(/\.$/, "")}.`;
}

/** What this browser keeps under a name; null: nothing, or it keeps nothing for this page. */
export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keep it. Returns whether there was room for it. */
export function keep(name, text) {
  try {
    localStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

/** A button without a form. */
export function button(text, onclick, properties = {}) {
  return make("button", { type: "button", onclick, ...properties }, text);
}

let probe = null;
let colours = new Map();

/** A colour of the style sheet, as the canvas wants it: `colour("--accent")`. */
export function colour(name) {
  if (!colours.has(name)) {
    if (probe === null) {
      probe = make("span", { hidden: true });
      document.body.append(probe);
    }
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

/** The theme has changed: colours are asked for again. */
export function forgetColours() {
  colours = new Map();
}

export function isDark() {
  const [red, green, blue] = colour("--back").match(/[\d.]+/g).map(Number);
  return red + green + blue < 384;
}

/** Hue of a request or slot: neighbours differ as much as they can. */
export function hue(number) {
  return (number * 137.508 + 210) % 360;
}

/** [red, green, blue], 0 to 255, of a holder's colour in this theme. */
export function holderRgb(number) {
  const light = isDark() ? 0.62 : 0.5;
  const a = 0.6 * Math.min(light, 1 - light);
  const part = (n) => {
    const k = (n + hue(number) / 30) % 12;
    return Math.round(255 * (light - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

export function holderColour(number) {
  return `rgb(${holderRgb(number).join(" ")})`;
}

/** A canvas that is as fine as the screen. Returns [context, width, height] in CSS pixels. */
export function prepare(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

export const still = matchMedia("(prefers-reduced-motion: reduce)");

/** 1234567 -> "1,234,567". */
export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** Bytes for people. */
export function bytes(number) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (number >= size) return `${(number / size).toFixed(number < 10 * size ? 1 : 0)} ${unit}`;
  }
  return `${number} bytes`;
}

/** Milliseconds for people. */
export function span(ms) {
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60000) / 1000)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
