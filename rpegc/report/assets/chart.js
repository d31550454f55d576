// The Gantt chart as a picture: rows, the visible stretch of time, and how both are painted on two canvases
// (the axis with its band of steps, and the lanes under it). Only what is visible is painted, so hundreds of
// GPUs cost no more than fit on the screen.

const AXIS_HEIGHT = 22;
const STEP_HEIGHT = 16;
const FONT = '11px system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif';

/** Intervals in the fewest rows without overlap, in the order of their starts. */
function packed(intervals) {
  const ends = [];
  return intervals.map((i) => {
    let row = ends.findIndex((end) => end <= i.start);
    if (row < 0) row = ends.length;
    ends[row] = i.finish;
    return { ...i, row };
  });
}

/** Start, finish and number of every step. */
function stepSpans() {
  const spans = new Map();
  for (const n of report.nodes) {
    const s = spans.get(n.step) ?? { step: n.step, start: Infinity, finish: 0 };
    s.start = Math.min(s.start, n.start_ns);
    s.finish = Math.max(s.finish, n.finish_ns);
    spans.set(n.step, s);
  }
  return packed([...spans.values()].sort((a, b) => a.start - b.start));
}

class Chart {
  constructor(head, body) {
    this.head = head;
    this.body = body;
    this.end = Math.max(1, report.score.makespan_ns);
    this.view = [0, this.end];
    this.scroll = 0;
    this.critical = true;
    this.hovered = this.selected = this.step = null;
    this.open = new Set();
    this.steps = stepSpans();
    this.headHeight = AXIS_HEIGHT + STEP_HEIGHT * (1 + Math.max(-1, ...this.steps.map((s) => s.row)));
    this.successors = report.nodes.map(() => []);
    for (const n of report.nodes) for (const p of n.predecessors) this.successors[p].push(n.id);
    this.widths = new Map();
    this.arrange();
  }

  /** Rows from lanes: one per lane, and one per GPU under a lane that is open. */
  arrange() {
    const tall = Math.max(24, Math.min(58, Math.round(320 / report.lanes.length)));
    this.rows = [];
    let y = 0;
    const add = (row, height) => { this.rows.push({ ...row, y, height }); y += height; };
    report.lanes.forEach((lane, i) => {
      add({ lane, index: i, device: null }, tall);
      if (this.open.has(i)) for (const device of lane.devices) add({ lane, index: i, device }, 18);
    });
    this.height = y;
  }

  x(ns) { return ((ns - this.view[0]) / (this.view[1] - this.view[0])) * this.width; }
  time(x) { return this.view[0] + (x / this.width) * (this.view[1] - this.view[0]); }

  /** Show [from, to], kept inside the run and wider than nothing. */
  show(from, to) {
    const span = Math.min(this.end, Math.max(to - from, 20));
    const start = Math.min(Math.max(0, from), this.end - span);
    this.view = [start, start + span];
  }

  zoom(factor, x = this.width / 2) {
    const [at, span] = [this.time(x), (this.view[1] - this.view[0]) * factor];
    this.show(at - (x / this.width) * span, at + (1 - x / this.width) * span);
  }

  get zoomed() { return this.view[1] - this.view[0] < this.end * 0.9999; }

  /** Where a bar of a row stands: operators in the upper strip, transfers in the lower. */
  strip(row, node) {
    const low = row.device ? 4 : Math.round(row.height * 0.26);
    const upper = row.height - low - 3;
    return node.kind === "Op" ? [row.y + 1, upper] : [row.y + 1 + upper, low];
  }

  /** Nodes of a lane that may be visible; `ids` are in the order of their starts. */
  *visible(ids) {
    let [low, high] = [0, ids.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (report.nodes[ids[middle]].finish_ns < this.view[0]) low = middle + 1; else high = middle;
    }
    for (let i = Math.max(0, low - 1); i < ids.length; i++) {
      const node = report.nodes[ids[i]];
      if (node.start_ns > this.view[1]) return;
      yield node;
    }
  }

  /** The node under a point of the body, transfers first where they are thin. */
  at(x, y) {
    const row = this.rows.find((r) => y + this.scroll >= r.y && y + this.scroll < r.y + r.height);
    if (!row) return null;
    let near = null, distance = 4;
    for (const ids of [row.lane.nodes, row.lane.sends]) {
      for (const node of this.visible(ids)) {
        const [top, height] = this.strip(row, node);
        if (y + this.scroll < top - 1 || y + this.scroll > top + height + 1) continue;
        const [a, b] = [this.x(node.start_ns), this.x(node.finish_ns)];
        const d = Math.max(a - x, x - b, 0);
        if (d < distance) [near, distance] = [node, d];
      }
      if (near) return near;
    }
    return near;
  }

  stepAt(x, y) {
    return this.steps.find((s) => y >= AXIS_HEIGHT + s.row * STEP_HEIGHT
      && y < AXIS_HEIGHT + (s.row + 1) * STEP_HEIGHT && x >= this.x(s.start) && x <= this.x(s.finish)) ?? null;
  }

  // Painting ------------------------------------------------------------------------------------------

  canvas(element, height) {
    const scale = window.devicePixelRatio || 1;
    element.style.height = `${height}px`;
    this.width = element.clientWidth;
    element.width = Math.round(this.width * scale);
    element.height = Math.round(height * scale);
    const c = element.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.font = FONT;
    c.textBaseline = "middle";
    return c;
  }

  paint(bodyHeight) {
    this.colors = Object.fromEntries(["ink", "soft", "surface", "grid", "line", "band", "accent", "critical"]
      .map((name) => [name, theme(`--${name}`)]));
    this.shown = bodyHeight;
    this.painted = 0;
    this.paintBody(this.canvas(this.body, bodyHeight));
    this.paintHead(this.canvas(this.head, this.headHeight));
    this.body.dataset.bars = this.painted;
  }

  ticks() {
    const rough = (this.view[1] - this.view[0]) / Math.max(2, this.width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].find((m) => m * power >= rough) * power);
    const found = [];
    for (let t = Math.ceil(this.view[0] / step) * step; t <= this.view[1]; t += step) found.push(t);
    return found;
  }

  paintHead(c) {
    c.fillStyle = this.colors.surface;
    c.fillRect(0, 0, this.width, this.headHeight);
    c.fillStyle = this.colors.soft;
    c.textAlign = "center";
    for (const t of this.ticks()) {
      const [x, text] = [this.x(t), duration(t)];
      const half = c.measureText(text).width / 2 + 3;
      c.fillRect(x, AXIS_HEIGHT - 5, 1, 5);
      c.fillText(text, Math.min(this.width - half, Math.max(half, x)), 9);
    }
    for (const s of this.steps) {
      const a = Math.max(-5, this.x(s.start)), b = Math.min(this.width + 5, this.x(s.finish));
      if (b < a) continue;
      const y = AXIS_HEIGHT + s.row * STEP_HEIGHT;
      c.fillStyle = this.step === s.step ? this.colors.accent : s.step % 2 ? this.colors.band : this.colors.line;
      c.fillRect(a + 0.5, y + 1, Math.max(1, b - a - 1), STEP_HEIGHT - 3);
      const text = [`step ${s.step}`, `${s.step}`].find((t) => this.textWidth(c, t) < b - a - 6);
      c.fillStyle = this.step === s.step ? this.colors.surface : this.colors.ink;
      if (text) c.fillText(text, (Math.max(0, a) + Math.min(this.width, b)) / 2, y + STEP_HEIGHT / 2);
    }
  }

  paintBody(c) {
    c.fillStyle = this.colors.surface;
    c.fillRect(0, 0, this.width, this.shown);
    c.translate(0, -this.scroll);
    c.fillStyle = this.colors.grid;
    for (const t of this.ticks()) c.fillRect(Math.round(this.x(t)), this.scroll, 1, this.shown);
    const rows = this.rows.filter((r) => r.y + r.height > this.scroll && r.y < this.scroll + this.shown);
    for (const row of rows) {
      c.fillStyle = row.device ? this.colors.grid : this.colors.line;
      c.fillRect(0, row.y + row.height - 1, this.width, 1);
      this.paintRow(c, row);
    }
    if (this.critical) this.paintCritical(c);
    const node = report.nodes[this.hovered ?? this.selected ?? -1];
    if (node) this.paintLinks(c, node);
  }

  paintRow(c, row) {
    for (const node of this.visible(row.lane.sends)) {
      const [y, height] = this.strip(row, node);
      const a = this.x(node.start_ns);
      c.strokeStyle = FLOWS[node.flow][0];
      c.lineWidth = 1;
      c.strokeRect(a + 0.5, y + 0.5, Math.max(2, this.x(node.finish_ns) - a - 1), height - 2);
    }
    let last = -9;
    for (const node of this.visible(row.lane.nodes)) {
      const [y, height] = this.strip(row, node);
      const a = this.x(node.start_ns), b = this.x(node.finish_ns);
      if (b - a < 0.4 && a - last < 0.6 && node.kind !== "Op" && !node.critical) continue;
      last = a;
      this.paintBar(c, row, node, Math.max(-9, a), Math.min(this.width + 9, b), y, height);
      this.painted += 1;
    }
  }

  paintBar(c, row, node, a, b, y, height) {
    const faded = (this.step !== null && node.step !== this.step) || (this.critical && !node.critical);
    const width = Math.max(b - a - (b - a > 4 ? 1 : 0), node.kind === "Op" ? 1 : 2);
    const shade = (hex) => {
      const tint = mix(hex, this.colors.surface, node.step % 2 && node.kind === "Op" ? 0.26 : 0);
      return faded ? mix(tint, this.colors.surface, 0.42) : tint;
    };
    const colors = (node.kind === "Op" ? node.members.map((m) => operatorColors[m]) : [FLOWS[node.flow][0]]).map(shade);
    c.fillStyle = colors[0];
    c.fillRect(a, y, width, height);
    if (colors.length > 1) this.paintStripes(c, colors[1], a, y, width, height);
    if (this.critical && node.critical) {
      c.strokeStyle = this.colors.critical;
      c.lineWidth = row.device ? 1 : 1.5;
      if (width > 3) c.strokeRect(a + 0.75, y + 0.75, width - 1.5, height - 1.5);
    }
    if (node.id === this.hovered || node.id === this.selected) {
      c.strokeStyle = this.colors.accent;
      c.lineWidth = 2.5;
      c.strokeRect(a, y, width, height);
    }
    if (node.kind !== "Op" || height < 13) return;
    const from = Math.max(0, a), room = Math.min(this.width, b) - from - 8;
    const phase = node.phases > 1 ? `.${node.phase}` : "";
    const text = [`${node.vertex} ${node.step}${phase}`, `${node.step}${phase}`].find((t) => this.textWidth(c, t) <= room);
    if (!text) return;
    const middle = y + height / 2 + 0.5;
    if (colors.length > 1) {
      c.fillStyle = colors[0];
      c.fillRect(from + 2, middle - 7, this.textWidth(c, text) + 4, 14);
    }
    c.fillStyle = inkOn(colors[0]);
    c.textAlign = "left";
    c.fillText(text, from + 4, middle);
  }

  paintStripes(c, color, x, y, width, height) {
    c.save();
    c.beginPath();
    c.rect(x, y, width, height);
    c.clip();
    c.strokeStyle = color;
    c.lineWidth = 4;
    c.beginPath();
    for (let s = x - height; s < x + width; s += 11) {
      c.moveTo(s, y + height);
      c.lineTo(s + height, y);
    }
    c.stroke();
    c.restore();
  }

  /** The middle of a node's bar in the first row that shows it. */
  middle(node) {
    const row = this.rows.find((r) => r.lane.nodes.includes(node.id));
    if (!row) return null;
    const [y, height] = this.strip(row, node);
    return y + height / 2;
  }

  /** Where the critical path changes lanes: a line from the bar that ends to the bar that starts. */
  paintCritical(c) {
    c.strokeStyle = this.colors.critical;
    c.lineWidth = 1.5;
    for (let i = 1; i < report.critical_path.length; i++) {
      const [before, after] = [report.nodes[report.critical_path[i - 1]], report.nodes[report.critical_path[i]]];
      const x = this.x(after.start_ns);
      if (x < -1 || x > this.width + 1) continue;
      const [from, to] = [this.middle(before), this.middle(after)];
      if (from === null || to === null || Math.abs(from - to) < 3) continue;
      c.beginPath();
      c.moveTo(x, from);
      c.lineTo(x, to);
      c.stroke();
    }
  }

  /** Curves from what a node waits for, and to what waits for it. */
  paintLinks(c, node) {
    const link = (from, to, dash) => {
      const [y0, y1] = [this.middle(from), this.middle(to)];
      if (y0 === null || y1 === null) return;
      const [x0, x1] = [this.x(from.finish_ns), this.x(to.start_ns)];
      c.setLineDash(dash);
      c.beginPath();
      c.moveTo(x0, y0);
      c.bezierCurveTo(x0 + 18, y0, x1 - 18, y1, x1, y1);
      c.stroke();
    };
    c.strokeStyle = this.colors.accent;
    c.lineWidth = 1.6;
    for (const p of node.predecessors) link(report.nodes[p], node, []);
    for (const s of this.successors[node.id]) link(node, report.nodes[s], [5, 3]);
    c.setLineDash([]);
  }

  textWidth(c, text) {
    if (!this.widths.has(text)) this.widths.set(text, c.measureText(text).width);
    return this.widths.get(text);
  }
}
