// The schedule's section: the chart with its lane labels, and everything one can do to it.

/** What is known about a node, as rows of name and value. */
function nodeFacts(node) {
  const weights = [...new Set([...Object.keys(node.reads), ...Object.keys(node.writes)])].map((m) =>
    `${m} ${[node.reads[m], node.writes[m]].filter((v) => v !== undefined).map((v) => `v${v}`).join(" → ")}`);
  const parts = Object.entries(node.parts_s).filter(([, s]) => s > 0);
  return [
    ["time", duration(node.finish_ns - node.start_ns)],
    ["from – to", `${moment(node.start_ns)} – ${moment(node.finish_ns)}`],
    ["step", `${node.step}${node.phases > 1 ? `, phase ${node.phase} of ${node.phases}` : ""}`],
    [node.kind === "Op" ? "runs on" : "reserves", node.gpus ? `${node.allocation}, ${plural(node.gpus, "GPU")}` : "host"],
    node.source_allocation ? ["comes from", node.source_allocation] : null,
    node.layout ? ["layout", node.layout] : null,
    node.kind === "Op" ? null : ["carries", `${node.what}, ${size(node.payload_bytes)}`],
    weights.length ? ["weights", weights.join(", ")] : null,
    parts.length ? ["parts", parts.map(([name, s]) => `${name} ${seconds(s)}`).join(", ")] : null,
    ["critical path", node.critical ? "yes" : "no"],
  ].filter(Boolean);
}

function nodeTip(node) {
  const kind = node.kind === "Op" ? "" : ` · ${FLOWS[node.flow][1]}`;
  return [h("strong", {}, node.label), kind, pairs(nodeFacts(node))];
}

function scheduleSection() {
  const head = h("canvas", { "aria-hidden": "true" });
  const body = h("canvas", {
    tabindex: 0, role: "application", "aria-roledescription": "Gantt chart", "aria-describedby": "keys",
    "aria-label": `Schedule of ${plural(report.nodes.length, "node")} on ${plural(report.gpus, "GPU")}`,
  });
  const chart = new Chart(head, body);
  const labels = h("div", { class: "labels" });
  const plot = h("div", { class: "plot" }, body);
  const pane = h("div", { class: "body" }, labels, plot);
  const picked = h("div", { class: "picked", "aria-live": "polite" });
  const box = h("div", { class: "gantt" },
    h("div", { class: "top" }, h("div", { class: "corner" }, h("span", { title: "rack.node.gpu" }, "GPUs"), h("span", {}, "busy")),
      h("div", {}, head)),
    pane);

  let pending = false;
  const repaint = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; paint(); });
  };
  const paint = () => {
    const limit = document.documentElement.classList.contains("paper") ? 4000 : pane.clientHeight || 400;
    chart.scroll = pane.scrollTop;
    chart.paint(Math.min(chart.height, limit));
  };

  function relabel() {
    chart.arrange();
    labels.style.height = plot.style.height = `${chart.height}px`;
    labels.replaceChildren(...chart.rows.map((row) => {
      const style = `top:${row.y}px;height:${row.height}px`;
      if (row.device) return h("div", { class: "lane single", style }, row.device);
      const many = row.lane.devices.length > 1;
      const open = chart.open.has(row.index);
      const toggle = !many ? h("span", { class: "blank" }) : h("button", {
        "aria-expanded": String(open), "aria-label": `${open ? "Collapse" : "Expand"} ${row.lane.label}`,
        onclick: () => {
          if (open) chart.open.delete(row.index); else chart.open.add(row.index);
          relabel();
          labels.querySelectorAll("button")[buttons.indexOf(row.index)]?.focus();
        },
      }, open ? "−" : "+");
      const buttons = report.lanes.flatMap((l, i) => (l.devices.length > 1 ? [i] : []));
      return h("div", { class: "lane", style, title: row.lane.devices.length ? `${row.lane.label} (${plural(row.lane.devices.length, "GPU")})` : "the host" },
        toggle, h("span", { class: "where" }, row.lane.label),
        many ? h("span", { class: "count" }, `×${row.lane.devices.length}`) : null,
        row.lane.devices.length ? h("span", { class: "busy" }, `${Math.round(100 * row.lane.busy)} %`) : null);
    }));
    repaint();
  }

  /** Select a node: its facts stay under the chart, with what it waits for and what waits for it. */
  function pick(id, reveal = false) {
    chart.selected = id;
    const node = report.nodes[id ?? -1];
    if (!node) {
      picked.replaceChildren(h("span", { class: "keys" }, "Click a bar, or focus the chart and press N, to keep its details here."));
    } else {
      if (reveal && (node.finish_ns < chart.view[0] || node.start_ns > chart.view[1])) {
        const half = (chart.view[1] - chart.view[0]) / 2;
        chart.show(node.start_ns - half, node.start_ns + half);
      }
      const links = (name, ids) => ids.length ? h("div", { class: "links" }, h("span", { class: "keys" }, name), ids.map((i) =>
        h("button", { onclick: () => pick(i, true) }, report.nodes[i].label))) : null;
      picked.replaceChildren(...nodeTip(node), links("waits for", node.predecessors) ?? "", links("needed by", chart.successors[id]) ?? "");
    }
    repaint();
  }

  /** The next node in the order of starts, from the selected one. */
  const order = report.nodes.map((n) => n.id).sort((a, b) => report.nodes[a].start_ns - report.nodes[b].start_ns || a - b);
  const along = (by) => {
    const path = chart.critical ? report.critical_path : order;
    const place = path.indexOf(chart.selected);
    pick(path[place < 0 ? 0 : (place + by + path.length) % path.length], true);
  };

  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const criticalButton = h("button", { id: "toggle-critical", "aria-pressed": "true", onclick: () => {
    chart.critical = !chart.critical;
    press(criticalButton, chart.critical);
    repaint();
  } }, "Critical path");
  const expandButton = h("button", { id: "toggle-gpus", "aria-pressed": "false", onclick: () => {
    const all = chart.open.size === 0;
    chart.open = new Set(all ? report.lanes.keys() : []);
    press(expandButton, all);
    relabel();
  } }, "Every GPU");
  const zoomTo = (from, to) => { chart.show(from, to); repaint(); };
  const oneStep = () => {
    const s = chart.steps.find((x) => x.step === report.shown_step) ?? { start: 0, finish: chart.end };
    const room = (s.finish - s.start) * 0.03;
    zoomTo(s.start - room, s.finish + room);
  };
  const actions = {
    ArrowLeft: () => chart.show(...chart.view.map((t) => t - (chart.view[1] - chart.view[0]) / 8)),
    ArrowRight: () => chart.show(...chart.view.map((t) => t + (chart.view[1] - chart.view[0]) / 8)),
    ArrowUp: () => { pane.scrollTop -= 40; },
    ArrowDown: () => { pane.scrollTop += 40; },
    "+": () => chart.zoom(1 / 1.5),
    "=": () => chart.zoom(1 / 1.5),
    "-": () => chart.zoom(1.5),
    0: () => chart.show(0, chart.end),
    n: () => along(1),
    p: () => along(-1),
    c: () => criticalButton.click(),
    Escape: () => pick(null),
  };
  const tools = h("div", { class: "tools", role: "toolbar", "aria-label": "Chart" },
    h("button", { onclick: () => zoomTo(0, chart.end) }, "Whole run"),
    h("button", { onclick: oneStep }, "One step"),
    h("button", { "aria-label": "Zoom in", onclick: () => { chart.zoom(1 / 1.5); repaint(); } }, "+"),
    h("button", { "aria-label": "Zoom out", onclick: () => { chart.zoom(1.5); repaint(); } }, "−"),
    criticalButton, report.lanes.some((l) => l.devices.length > 1) ? expandButton : null,
    h("span", { class: "keys", id: "keys" }, "Wheel: zoom · drag: move · in the chart ", h("kbd", {}, "+"), " ", h("kbd", {}, "−"), " ",
      h("kbd", {}, "0"), " ", h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " ", h("kbd", {}, "N"), " ", h("kbd", {}, "P"),
      " next and previous node · ", h("kbd", {}, "C"), " critical path"));

  body.addEventListener("keydown", (e) => {
    const act = e.ctrlKey || e.metaKey || e.altKey ? null : actions[e.key.length === 1 ? e.key.toLowerCase() : e.key];
    if (!act) return;
    e.preventDefault();
    act();
    repaint();
  });

  let scrolled = -1e9;
  window.addEventListener("scroll", () => { scrolled = performance.now(); }, { passive: true });
  /** Zoom, unless the page was being scrolled when the pointer came across the chart. */
  const wheel = (e) => {
    if (performance.now() - scrolled < 250 || (e.deltaY > 0 && !chart.zoomed)) return;
    e.preventDefault();
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      const by = ((e.deltaX || e.deltaY) / chart.width) * (chart.view[1] - chart.view[0]);
      chart.show(chart.view[0] + by, chart.view[1] + by);
    } else {
      chart.zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * 0.004), e.offsetX);
    }
    hideTip();
    repaint();
  };
  let drag = null;
  for (const canvas of [head, body]) {
    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("pointerdown", (e) => {
      drag = { x: e.clientX, y: e.clientY, view: chart.view, top: pane.scrollTop, moved: false };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", (e) => {
      if (!drag) return;
      const [dx, dy] = [e.clientX - drag.x, e.clientY - drag.y];
      if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
      if (!drag.moved) return;
      canvas.classList.add("dragging");
      hideTip();
      const by = (dx / chart.width) * (drag.view[1] - drag.view[0]);
      chart.show(drag.view[0] - by, drag.view[1] - by);
      pane.scrollTop = drag.top - dy;
      repaint();
    });
    const release = (e) => {
      canvas.classList.remove("dragging");
      if (drag && !drag.moved && e.type === "pointerup") click(canvas, e);
      drag = null;
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      hideTip();
      chart.hovered = chart.step = null;
      repaint();
    });
  }
  function click(canvas, e) {
    if (canvas === body) return pick(chart.at(e.offsetX, e.offsetY)?.id ?? null);
    const step = chart.stepAt(e.offsetX, e.offsetY);
    if (step) zoomTo(step.start, step.finish);
  }
  body.addEventListener("pointermove", (e) => {
    if (drag?.moved) return;
    const node = chart.at(e.offsetX, e.offsetY);
    if (node) showTip(nodeTip(node), e.clientX, e.clientY); else hideTip();
    if ((node?.id ?? null) !== chart.hovered) { chart.hovered = node?.id ?? null; repaint(); }
  });
  head.addEventListener("pointermove", (e) => {
    if (drag?.moved) return;
    const step = chart.stepAt(e.offsetX, e.offsetY);
    if (step) {
      showTip([h("strong", {}, `step ${step.step}`), pairs([["first start", duration(step.start)], ["last finish", duration(step.finish)],
        ["in flight", duration(step.finish - step.start)]])], e.clientX, e.clientY);
    } else hideTip();
    if ((step?.step ?? null) !== chart.step) { chart.step = step?.step ?? null; repaint(); }
  });
  pane.addEventListener("scroll", () => { hideTip(); repaint(); });
  new ResizeObserver(repaint).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  for (const [event, paper] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      document.documentElement.classList.toggle("paper", paper);
      paint();
    });
  }

  const used = new Set(report.nodes.map((n) => n.flow));
  const legend = h("div", { class: "legend" },
    report.operators.map((o) => h("span", {}, swatch(operatorColors[o.name]), o.name)),
    Object.entries(FLOWS).filter(([flow]) => used.has(flow)).map(([, [color, name]]) => h("span", {}, swatch(color), name)));
  relabel();
  pick(null);
  return h("section", { id: "schedule" },
    h("h2", {}, "Schedule"),
    h("p", { class: "lead" }, `${plural(report.steps, "step")} as the runtime will execute them, on ${plural(report.gpus, "GPU")}. `,
      "GPUs with the same row are one lane. Operators stand in the upper strip of a lane, transfers in the lower one: filled where they ",
      "reserve the GPUs, hollow where they come from. Odd steps are lighter; “actor_gen 3.2” is step 3, phase 2."),
    legend, tools, box, picked);
}
