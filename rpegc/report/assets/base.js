// What every part of the page uses: the data, elements, numbers as people read them, colours, the tooltip.

const report = JSON.parse(document.getElementById("report").textContent);

/** An HTML element; attributes whose name starts with "on" are listeners, null children are left out. */
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return element;
}

// Numbers ---------------------------------------------------------------------------------------------

function digits(value, count = 4) {
  if (value === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, count - 1 - magnitude) });
}

/** Nanoseconds with the unit that leaves four digits at most. */
function duration(ns) {
  if (ns === 0) return "0";
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= scale) return `${digits(ns / scale)} ${unit}`;
  }
  return `${digits(ns)} ns`;
}

/** A moment of the run, exact enough to tell a transfer's start from its end. */
const moment = (ns) => (ns >= 1e9 ? `${digits(ns / 1e9, 8)} s` : duration(ns));

const seconds = (s) => duration(s * 1e9);

/** Bytes in binary units. */
function size(bytes) {
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (Math.abs(bytes) >= scale) return `${digits(bytes / scale)} ${unit}`;
  }
  return `${digits(bytes)} B`;
}

const percent = (fraction) => (fraction > 0 && fraction < 1e-4 ? "< 0.01 %" : `${digits(100 * fraction, 3)} %`);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// Colours ---------------------------------------------------------------------------------------------

// A family of hues per role, so that generation, inference and training are told apart at a glance.
const FAMILIES = {
  generation: ["#3f74c6", "#7b61c4", "#2f97c1", "#5a5fb0"],
  inference: ["#2c9a72", "#86a332", "#1d8799", "#5fae5a", "#4f7f4a", "#76b7a0"],
  training: ["#dd7f29", "#c94a5a", "#b58a1d", "#a3548c"],
  host: ["#7b7f88", "#9a8f80"],
};
const FLOWS = {
  data: ["#64748b", "data transfer"],
  weights: ["#c026a8", "publication of weights"],
  reshard: ["#7c3aed", "reshard"],
};
const TIME_PARTS = {
  gemm: ["#3f74c6", "matrix products"],
  microtasks: ["#5a5fb0", "matrix products of both models, interleaved, and what bubbles remain"],
  host: ["#7b7f88", "host function"],
  nongemm: ["#8db4e8", "kernels other than matrix products"],
  bubble: ["#c3c7ce", "pipeline bubble"],
  tp: ["#dd7f29", "tensor-parallel collectives"],
  cp: ["#b58a1d", "context-parallel exchange"],
  ep: ["#86a332", "expert-parallel all-to-all"],
  pp: ["#c94a5a", "pipeline sends"],
  dp: ["#a3548c", "data-parallel collectives"],
  opt: ["#2c9a72", "optimizer"],
  latency: ["#64748b", "latency"],
  bytes: ["#c026a8", "bytes on the wire"],
};
const MEMORY_PARTS = {
  optimizer: ["#dd7f29", "optimizer state"],
  gradients: ["#c94a5a", "gradients"],
  grad: ["#c94a5a", "gradients"],
  weights: ["#3f74c6", "weights"],
  frozen: ["#8db4e8", "frozen weights"],
  serving: ["#2f97c1", "weights for serving"],
  shadow: ["#2f97c1", "shadow weights"],
  other_weights: ["#7b61c4", "weights of others, meanwhile"],
  kv: ["#2c9a72", "KV cache"],
  kv_cache: ["#2c9a72", "KV cache"],
  act: ["#b58a1d", "activations"],
  layer_inputs: ["#b58a1d", "saved layer inputs"],
  layer: ["#d8b75a", "one layer's activations"],
  logits: ["#a3548c", "logits"],
};
const SPARE = ["#1d8799", "#9a8f80", "#5a5fb0", "#76b7a0", "#64748b", "#c026a8"];

const operatorColors = {};
{
  const used = {};
  for (const o of report.operators) {
    const family = o.gpus ? o.role : "host";
    const shades = FAMILIES[family];
    used[family] = (used[family] ?? -1) + 1;
    operatorColors[o.name] = shades[used[family] % shades.length];
  }
}

/** Colour and meaning of a part; a part that this page does not know gets a spare colour of its own. */
function part(table, name) {
  table[name] ??= [SPARE[Object.keys(table).length % SPARE.length], name.replaceAll("_", " ")];
  return table[name];
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** `hex` with `share` of `other` in it. */
function mix(hex, other, share) {
  const [a, b] = [rgb(hex), rgb(other)];
  return "#" + a.map((x, i) => Math.round(x + (b[i] - x) * share).toString(16).padStart(2, "0")).join("");
}

/** Black or white, whichever reads better on `hex`. */
function inkOn(hex) {
  const [r, g, b] = rgb(hex).map((x) => (x / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#15181d" : "#ffffff";
}

/** A value of the style sheet as it is in force (light, dark or paper). */
const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** CSS background of one or two colours, the second as stripes. */
function stripes(colors) {
  if (colors.length === 1) return colors[0];
  return `repeating-linear-gradient(135deg, ${colors[0]} 0 7px, ${colors[1]} 7px 12px)`;
}

/** A small square of colour. */
const swatch = (...colors) => h("span", { class: "swatch", style: `background:${stripes(colors)}` });

// Tooltip ---------------------------------------------------------------------------------------------

const tip = document.getElementById("tip");

function showTip(content, x, y) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const [width, height] = [document.documentElement.clientWidth, window.innerHeight];
  tip.style.left = `${Math.max(8, x + 14 + box.width > width - 8 ? x - 14 - box.width : x + 14)}px`;
  tip.style.top = `${Math.max(8, Math.min(y + 14, height - 8 - box.height))}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** Shows `content()` while the pointer is over `element`. */
function hint(element, content) {
  element.addEventListener("pointermove", (e) => showTip(content(), e.clientX, e.clientY));
  element.addEventListener("pointerleave", hideTip);
  return element;
}

/** Rows of name and value. */
function pairs(rows) {
  return h("dl", { class: "pairs" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** A table; `right` holds the columns of numbers, `lead` a caption for screen readers. */
function table(head, rows, { right = [], lead = "" } = {}) {
  const align = (i) => (right.includes(i) ? "number" : null);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": lead },
    h("table", {},
      h("thead", {}, h("tr", {}, head.map((c, i) => h("th", { scope: "col", class: align(i) }, c)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((c, i) => h("td", { class: align(i) }, c)))))));
}
