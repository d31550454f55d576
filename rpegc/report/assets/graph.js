// The graph of one step, from the layers and heights that the report holds.

const BOX = { width: 176, height: 74, down: 96, across: 132 };

function graphSection() {
  const { vertices, edges, layers, height } = report.graph;
  const published = edges.filter((e) => e.publication);
  const below = height * BOX.down + 14;
  const width = layers * BOX.width + (layers - 1) * BOX.across + 40;
  const total = below + published.length * 22 + 20;
  const left = (layer) => 20 + layer * (BOX.width + BOX.across);
  const place = Object.fromEntries(vertices.map((v) => [v.name, { x: left(v.layer), y: v.y * BOX.down + 8 }]));
  const operators = Object.fromEntries(report.operators.map((o) => [o.name, o]));
  const port = (name, side) => {
    const all = edges.filter((e) => !e.publication && e[side] === name);
    const other = side === "source" ? "target" : "source";
    const key = (e) => (e.bends.length ? e.bends[side === "source" ? 0 : e.bends.length - 1][1] * BOX.down : place[e[other]].y);
    return new Map(all.sort((a, b) => key(a) - key(b)).map((e, i) =>
      [e, place[name].y + ((i + 1) / (all.length + 1) - 0.5) * BOX.height * 0.8]));
  };
  const out = Object.fromEntries(vertices.map((v) => [v.name, port(v.name, "source")]));
  const into = Object.fromEntries(vertices.map((v) => [v.name, port(v.name, "target")]));
  const lines = [], labels = [];

  for (const e of edges.filter((x) => !x.publication)) {
    const points = [[place[e.source].x + BOX.width, out[e.source].get(e)],
      ...e.bends.flatMap(([layer, y]) => [[left(layer), y * BOX.down + 8], [left(layer) + BOX.width, y * BOX.down + 8]]),
      [place[e.target].x - 5, into[e.target].get(e)]];
    let path = `M${points[0]}`;
    for (let i = 1; i < points.length; i++) {
      const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
      const half = (x1 - x0) / 2;
      path += y0 === y1 ? `L${x1},${y1}` : `C${x0 + half},${y0} ${x1 - half},${y1} ${x1},${y1}`;
    }
    lines.push(svg("path", { class: "edge", d: path, "marker-end": "url(#arrow)" },
      svg("title", {}, `${e.source} → ${e.target}: ${e.containers.join(", ")}`)));
    // Beside the end that fewer edges share, so that labels do not pile up.
    const atTarget = out[e.source].size >= into[e.target].size;
    const [[x0, y0], [x1, y1]] = atTarget ? points.slice(-2) : points;
    const share = atTarget ? 0.72 : 0.28;
    labels.push(svg("text", { class: "halo", "text-anchor": "middle", x: x0 + (x1 - x0) * share,
      y: y0 + (y1 - y0) * share ** 2 * (3 - 2 * share) - 3 }, e.containers.join(", ")));
  }
  published.forEach((e, i) => {
    const [a, b, y] = [place[e.source], place[e.target], below + 12 + i * 22];
    const shift = (published.length > 1 ? (i / (published.length - 1) - 0.5) * 60 : 0);
    const [x0, x1] = [a.x + BOX.width / 2 + shift, b.x + BOX.width / 2 + shift];
    lines.push(svg("path", { class: "edge publication", "marker-end": "url(#arrow-publication)",
      d: `M${x0},${a.y + BOX.height / 2} V${y} H${x1} V${b.y + BOX.height / 2 + 5}` },
      svg("title", {}, `${e.source} publishes ${e.containers.join(", ")} to ${e.target}`)));
    const delay = sum(e.containers.map(() => report.staleness[operators[e.source].model] ?? 0)) / e.containers.length;
    labels.push(svg("text", { class: "halo", "text-anchor": "middle", x: (x0 + x1) / 2, y: y - 4 },
      `${e.containers.join(", ")}${delay ? `, staleness ${digits(delay)}` : ""}`));
  });

  const marker = (id, kind) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path", { class: `arrow ${kind}`, d: "M0,0 L8,4 L0,8 z" }));
  const boxes = vertices.map((v) => {
    const o = operators[v.name];
    const { x, y } = place[v.name];
    const line = (text, dy, kind) => svg("text", { x: x + 14, y: y + dy, class: kind }, text);
    return svg("g", {},
      svg("title", {}, `${o.name}: ${o.role}${o.model ? ` of ${o.model}` : ""}, ${o.allocation} ${layoutText(o)}`),
      svg("rect", { class: "box", x, y: y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 6 }),
      svg("rect", { fill: operatorColors[o.name], x, y: y - BOX.height / 2, width: 6, height: BOX.height, rx: 3 }),
      svg("text", { x: x + 14, y: y - 20, "font-weight": 620 }, o.name),
      line(o.model ? `${o.role} · ${o.model}` : "on the host", -4, "quiet"),
      line(o.gpus ? `${plural(o.gpus, "GPU")} ${o.allocation}` : "", 12, "quiet"),
      line(o.gpus ? `${layoutText(o)} mb${o.microbatches}` : "", 27, "quiet"));
  });
  return h("section", { id: "graph" },
    h("h2", {}, "Graph of one step"),
    h("p", { class: "lead" }, "Containers flow along solid edges inside a step; dashed edges publish weights to a later step."),
    h("div", { class: "diagram", tabindex: 0, role: "region", "aria-label": "Graph of one step" },
      svg("svg", { viewBox: `0 0 ${width} ${total}`, style: `width:${width}px;max-width:100%;min-width:${Math.min(width, 620)}px`, role: "img", "aria-label": "Graph of one step" },
        svg("defs", {}, marker("arrow", ""), marker("arrow-publication", "publication")), lines, boxes, labels)));
}
