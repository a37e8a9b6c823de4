// The block pool as a map: one cell a block, drawn as one picture. A picture element a cell is filled in, then scaled.

import { colour, count, holderRgb, isDark, make, prepare, say } from "./dom.js";

const FREE = 0;
const CACHED = 1;
const SHARED = 2;
const HELD = 3;

const LINED = 5; // pixels of a cell from which there are lines between cells

export class Blocks {
  /** `onChoose(slot)`: a block of the choice in this slot was clicked. */
  constructor(feed, onChoose) {
    this._feed = feed;
    this._drawn = "";
    this._picture = document.createElement("canvas");
    this._canvas = make("canvas", { class: "map", role: "img", "aria-label": "Map of the block pool" });
    this._tip = make("p", { class: "hint", "aria-live": "off" }, "Point at a block to see whose it is.");
    this._legend = make("p", { class: "legend" });
    this._names = new Map();
    this.element = make("div", { class: "blocks" }, this._canvas, this._legend, this._tip);
    this._canvas.addEventListener("mousemove", (event) => this._point(event));
    this._canvas.addEventListener("mouseleave", () => say(this._tip, "Point at a block to see whose it is."));
    this._canvas.addEventListener("click", (event) => {
      const cell = this._cellAt(event);
      if (cell !== null && feed.cells[cell] >= HELD) onChoose(feed.cells[cell] - HELD);
    });
    for (const [kind, words] of [["free", "free"], ["cached", "kept for reuse"], ["shared", "shared by several"], ["held", "held, a colour for each request"]]) {
      this._legend.append(make("span", { class: `swatch ${kind}` }), words, " ");
    }
  }

  /** `names`: slot -> whose; `slots`: of the request that is followed, empty for none. */
  draw(names, slots) {
    this._names = names;
    const { cells, mapVersion } = this._feed;
    const key = [mapVersion, cells.length, this._canvas.clientWidth, this._canvas.clientHeight, devicePixelRatio, isDark(), [...slots].join()].join("|");
    if (key === this._drawn || !cells.length || !this._canvas.clientWidth) return;
    this._drawn = key;
    this._layOut(cells.length);
    const { columns, rows } = this._grid;
    const context = this._picture.getContext("2d");
    if (this._image?.width !== columns || this._image.height !== rows) {
      this._picture.width = columns;
      this._picture.height = rows;
      this._image = context.createImageData(columns, rows);
      this._pixels = new Uint32Array(this._image.data.buffer);
    }
    const palette = this._palette(slots);
    const pixels = this._pixels;
    for (let i = 0; i < cells.length; i++) pixels[i] = palette[cells[i]] || palette.add(cells[i]);
    pixels.fill(0, cells.length);
    context.putImageData(this._image, 0, 0);
    this._show();
  }

  _show() {
    const [context] = prepare(this._canvas);
    const { columns, rows, size } = this._grid;
    context.imageSmoothingEnabled = false;
    context.drawImage(this._picture, 0, 0, columns * size, rows * size);
    if (size < LINED) return;
    context.strokeStyle = colour("--panel");
    context.lineWidth = size > 8 ? 2 : 1;
    context.beginPath();
    for (let x = 0; x <= columns; x++) {
      context.moveTo(x * size, 0);
      context.lineTo(x * size, rows * size);
    }
    for (let y = 0; y <= rows; y++) {
      context.moveTo(0, y * size);
      context.lineTo(columns * size, y * size);
    }
    context.stroke();
  }

  /** The largest cells with which all fit. */
  _layOut(n) {
    const width = this._canvas.clientWidth;
    const height = this._canvas.clientHeight;
    const overflows = (size) => Math.ceil(n / Math.floor(width / size)) * size > height;
    let size = Math.floor(Math.sqrt((width * height) / n));
    while (size >= LINED && overflows(size)) size -= 1;
    // Without lines between them, cells need no whole pixels: they fill the picture, and may be less than a pixel.
    if (size < LINED) for (size = Math.sqrt((width * height) / n); overflows(size); ) size *= 0.995;
    size = Math.min(size, 18);
    const columns = Math.max(1, Math.floor(width / size));
    this._grid = { columns, rows: Math.ceil(n / columns), size };
  }

  /** Cell -> colour, as a number; 0 where it is not known yet: `add` it. Kept while theme and choice stay. */
  _palette(slots) {
    const key = `${isDark()}|${[...slots].join()}`;
    if (this._colours?.key === key) return this._colours;
    const known = Object.assign(new Uint32Array(1 << 16), { key });
    const words = (rgb, alpha = 255) => ((alpha << 24) | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0]) >>> 0;
    const named = (name) => words(colour(name).match(/[\d.]+/g).slice(0, 3).map(Number));
    known[FREE] = named("--free");
    known[CACHED] = named("--cached");
    known[SHARED] = named("--shared");
    const dim = slots.size ? 70 : 255;
    known.add = (cell) => (known[cell] = words(holderRgb(cell - HELD), slots.has(cell - HELD) ? 255 : dim));
    return (this._colours = known);
  }

  _cellAt(event) {
    if (!this._grid) return null;
    const { columns, size } = this._grid;
    const box = this._canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / size);
    const cell = Math.floor((event.clientY - box.top) / size) * columns + x;
    return x < columns && cell >= 0 && cell < this._feed.cells.length ? cell : null;
  }

  _point(event) {
    const cell = this._cellAt(event);
    if (cell === null) return;
    const value = this._feed.cells[cell];
    const block = cell * this._feed.blocksPerCell;
    const whose =
      value === FREE ? "free" : value === CACHED ? "nobody's, kept for reuse" : value === SHARED ? "shared by several" : `held by ${this._names.get(value - HELD) ?? "a request"}`;
    say(this._tip, `Block ${count(block)}: ${whose}`);
  }
}
