// Everything but the chart and the graph: figures, plan, times, memory, what other plans would have cost.

function layoutText(o) {
  const more = (o.context_parallel > 1 ? ` cp${o.context_parallel}` : "") + (o.expert_parallel > 1 ? ` ep${o.expert_parallel}` : "");
  return o.gpus ? `dp${o.data_parallel} pp${o.pipeline_parallel} tp${o.tensor_parallel}${more}` : "";
}

function intervalText(u) {
  if (u.step_time_low_s == null) return "interval not known";
  return `${percent(u.coverage)}: ${seconds(u.step_time_low_s)} to ${seconds(u.step_time_high_s)}`;
}

function header() {
  const s = report.score;
  const uncertain = report.uncertainty;
  const figure = (name, value, unit, under, extra = null) => h("div", { class: "figure" },
    h("div", { class: "name" }, name), h("div", { class: "value" }, value, " ", h("small", {}, unit)), h("div", { class: "under" }, under), extra);
  const meter = (fraction, bad = false) => h("div", { class: bad ? "meter bad" : "meter" },
    h("span", { style: `width:${Math.min(100, 100 * fraction)}%` }));
  const [step, stepUnit] = seconds(s.step_time_s).split(" ");
  const [peak, peakUnit] = size(s.max_peak_bytes).split(" ");
  const fill = s.max_peak_bytes / s.memory_limit_bytes;
  const w = report.workload;
  const stale = Object.entries(report.staleness);
  const facts = [
    ["cost model", report.cost_model + (report.as_printed ? ", as printed" : "")],
    ["hardware", h("span", {}, report.hardware.name, " ", report.hardware.nominal ? h("span", { class: "badge warn" }, "nominal, not calibrated") : h("span", { class: "badge" }, "calibrated"))],
    ["GPUs", `${report.gpus} = ${report.device_space.join(" × ")} (racks × nodes × GPUs)`],
    uncertain.note ? ["uncertainty", uncertain.note] : null,
    ["horizon", `K_eval = ${plural(report.steps, "step")}`],
    ["workload", `${w.prompts} prompts × ${plural(w.rollouts, "rollout")}, ${w.prompt_length} + ${w.response_length} tokens (mean response ${digits(s.mean_response_length)})`],
    ["training", `${plural(w.epochs ?? 1, "epoch")} of ${plural(w.minibatches ?? 1, "minibatch").replace("batchs", "batches")}`],
    ["staleness", stale.length ? stale.map(([m, t]) => `${m} ${t}`).join(", ") : "nothing trains"],
    ["split", report.split],
    report.fused ? ["fused", report.fused.join(" + ")] : null,
  ].filter(Boolean);
  return [
    h("h1", {}, report.name),
    report.about ? h("p", { class: "lead" }, report.about) : null,
    h("p", { class: "predicted" }, h("strong", {}, "Predicted, not measured. "),
      `Every time and every byte on this page is what cost model “${report.cost_model}” expects of this plan on “${report.hardware.name}”.`),
    s.memory_feasible ? null : h("p", { class: "notice bad", role: "alert" }, "This plan does not fit into memory: it cannot be run."),
    report.notices.map((n) => h("p", { class: "notice" }, n)),
    h("div", { class: "figures" },
      figure("Step time", step, stepUnit, `${duration(s.makespan_ns)} for ${plural(report.steps, "step")}`,
        h("div", { class: "under", title: uncertain.note || null }, intervalText(uncertain))),
      figure("Throughput", digits(s.tokens_per_s), "tokens/s", `score ${digits(s.score_tokens_per_s)}`),
      figure("Per GPU", digits(s.tokens_per_s_per_gpu), "tokens/s", `${plural(report.gpus, "GPU")}`),
      figure("Utilisation", digits(100 * s.utilisation, 3), "%", "reserved GPU time", meter(s.utilisation)),
      figure("Operators at once", digits(s.P_eff, 3), "P_eff", "operator time / makespan"),
      figure("GPU-hours per step", digits(s.gpu_hours_per_step), "GPU h", `${seconds(s.makespan_both_reserved_ns / report.steps / 1e9)} per step if transfers hold both ends`),
      figure("Peak memory", peak, peakUnit, `of ${size(s.memory_limit_bytes)} (${percent(fill)})`, meter(fill, !s.memory_feasible))),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
  ].flat().filter(Boolean);
}

/** Parts that take time, in the order in which the legend names them. */
const timeParts = (parts) => Object.keys(TIME_PARTS).concat(Object.keys(parts).filter((n) => !TIME_PARTS[n]))
  .filter((n) => parts[n] > 0).map((n) => [n, parts[n]]);

/** One bar of pieces `{text, color, amount, tip, kind}` on a scale where `whole` is the full width. */
function track(pieces, whole, label) {
  return h("div", { class: "track", role: "img", "aria-label": label }, pieces.filter((p) => p.amount > 0).map((p) => {
    const share = (100 * p.amount) / whole;
    const piece = h("div", { class: `piece ${p.kind ?? ""} ${share < 1.2 ? "thin" : ""}`,
      style: `width:${share}%;background-color:${p.color};color:${inkOn(p.color)}${p.stripe ? `;background-image:${stripes([p.color, p.stripe])}` : ""}` },
      share > 4 ? h("span", { style: `background:${p.color}` }, p.text) : "");
    return hint(piece, () => p.tip);
  }));
}

/** Positions 0 to 1 of round numbers up to `whole`, with their texts. */
function axis(whole, text, unit = 1) {
  const rough = whole / unit / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power * unit;
  const marks = [];
  for (let t = 0; t <= whole * 1.0001; t += step) marks.push(t);
  return h("div", { class: "axis", "aria-hidden": "true" }, marks.map((t) =>
    h("span", { style: `left:${(100 * t) / whole}%`, class: t / whole > 0.96 ? "last" : null }, text(t))));
}

function legendOf(source, names) {
  return h("div", { class: "legend" }, [...names].map((n) => {
    const [color, meaning] = part(source, n);
    return h("span", {}, swatch(color), meaning === n ? n : `${n}: ${meaning}`);
  }));
}

function criticalSection() {
  const whole = sum(report.critical_shares.map((s) => s.time_ns)) || 1;
  const colors = (s) => s.flow === "operator" ? membersOf(s.vertex).map((m) => operatorColors[m]) : [FLOWS[s.flow][0]];
  const name = (s) => (s.flow === "operator" ? s.vertex : `${FLOWS[s.flow][1]} to ${s.vertex}`);
  const pieces = report.critical_shares.map((s) => ({ text: name(s), color: colors(s)[0], stripe: colors(s)[1], amount: s.time_ns,
    tip: [h("strong", {}, name(s)), pairs([["on the path", duration(s.time_ns)], ["share", percent(s.time_ns / whole)],
      ["per step", duration(s.time_ns / report.steps)]])] }));
  return h("section", { id: "critical" },
    h("h2", {}, "Critical path"),
    h("p", { class: "lead" }, `The chain of ${plural(report.critical_path.length, "node")} that makes the run last ${duration(report.score.makespan_ns)}: only what stands here can make a step faster.`),
    track(pieces, whole, report.critical_shares.map((s) => `${name(s)} ${percent(s.time_ns / whole)}`).join(", ")),
    h("div", { class: "legend" }, report.critical_shares.map((s) =>
      h("span", {}, swatch(...colors(s)), `${name(s)} ${percent(s.time_ns / whole)}`))));
}

const membersOf = (name) => report.operator_times.find((t) => t.name === name)?.members ?? [name];

function planSection() {
  const times = Object.fromEntries(report.operator_times.map((t) => [t.name, t]));
  const wide = ["context_parallel", "expert_parallel"].filter((k) => report.operators.some((o) => (o[k] ?? 1) > 1));
  const head = ["operator", "role", "model", "GPUs", "allocation", "dp", "pp", "tp", ...wide.map((k) => `${k[0]}p`), "mb", "waves", "time per step"];
  const rows = report.operators.map((o) => {
    const t = times[o.timed_as];
    const shared = o.timed_as !== o.name ? " (fused)" : t && t.phases > 1 ? ` (${t.phases} phases)` : "";
    const cell = (v) => v ?? "–";
    return [h("span", {}, swatch(operatorColors[o.name]), o.name), o.role, o.model ?? "host", o.gpus || "–", h("span", { class: "mono" }, o.allocation),
      cell(o.data_parallel), cell(o.pipeline_parallel), cell(o.tensor_parallel), ...wide.map((k) => cell(o[k])), cell(o.microbatches), cell(o.waves),
      (t ? duration(t.time_ns) : "–") + shared];
  });
  const numbers = head.map((_, i) => i).filter((i) => i === 3 || i > 4);
  return h("section", { id: "plan" }, h("h2", {}, "Plan"),
    h("p", { class: "lead" }, "Allocation: origin + extent in racks, nodes, GPUs. dp, pp, tp: data-, pipeline-, tensor-parallel degree; mb: microbatches."),
    table(head, rows, { right: numbers, lead: "Plan" }));
}

function timeSection() {
  const longest = Math.max(1, ...report.operator_times.map((t) => t.time_ns)) / 1e9;
  const names = new Set(timeParts(Object.assign({}, ...report.operator_times.map((t) => Object.fromEntries(timeParts(t.parts_s))))).map(([n]) => n));
  const rows = report.operator_times.map((t) => {
    const parts = timeParts(t.parts_s);
    const pieces = parts.map(([n, s]) => ({ text: n, color: part(TIME_PARTS, n)[0], amount: s,
      tip: [h("strong", {}, `${t.name}: ${n}`), pairs([["what", part(TIME_PARTS, n)[1]], ["time", seconds(s)], ["share", percent(s / (t.time_ns / 1e9))]])] }));
    return [h("div", { class: "name" }, swatch(...t.members.map((m) => operatorColors[m])), t.name,
      t.phases > 1 ? h("small", {}, ` ${t.phases} phases`) : null),
    track(pieces, longest, `${t.name} ${duration(t.time_ns)}: ${parts.map(([n, s]) => `${n} ${seconds(s)}`).join(", ")}`),
    h("div", { class: "amount" }, duration(t.time_ns))];
  });
  const columns = [...names];
  const numbers = [["operator", ...columns, "total"], report.operator_times.map((t) =>
    [t.name, ...columns.map((c) => (t.parts_s[c] ? seconds(t.parts_s[c]) : "–")), duration(t.time_ns)])];
  const moved = report.transfers.map((t) => [h("span", {}, swatch(FLOWS[t.flow][0]), FLOWS[t.flow][1]), t.what, `${t.source} → ${t.target}`, t.count,
    size(t.payload_bytes), seconds(t.parts_s.latency ?? 0), seconds(t.parts_s.bytes ?? 0), duration(t.time_ns)]);
  return h("section", { id: "times" }, h("h2", {}, "Where an operator's time goes"),
    h("p", { class: "lead" }, `Parts of each operator in one step (step ${report.shown_step}), on one scale.`),
    legendOf(TIME_PARTS, names),
    h("div", { class: "bars" }, rows, h("span"), axis(longest, seconds), h("span")),
    h("details", {}, h("summary", {}, "Parts in numbers"), table(numbers[0], numbers[1], { right: numbers[0].map((_, i) => i).slice(1), lead: "Parts in numbers" })),
    report.fused_pipelines.map(pipelineFigure),
    moved.length ? h("details", {}, h("summary", {}, `Transfers of one step (${sum(report.transfers.map((t) => t.count))})`),
      table(["kind", "what", "from → to", "count", "payload", "latency", "moving", "time"], moved, { right: [3, 4, 5, 6, 7], lead: "Transfers" })) : null);
}

/** The interleaved microtasks of a fused pair: one row per pipeline position. */
function pipelineFigure(f) {
  const [rowHeight, left, width] = [26, 74, 1000];
  const x = (ns) => left + (ns / f.makespan_ns) * (width - left);
  const busy = sum(f.positions.flat().map((t) => t.finish_ns - t.start_ns)) / (f.makespan_ns * f.positions.length);
  const rows = f.positions.map((position, i) => [
    svg("text", { x: 0, y: i * rowHeight + 17, class: "quiet" }, `position ${i}`),
    position.map(({ task: [model, stage, microbatch, direction], start_ns, finish_ns }) => {
      const color = operatorColors[f.members[model]];
      const fillColor = direction === "F" ? mix(color, "#ffffff", 0.45) : color;
      const room = x(finish_ns) - x(start_ns);
      return svg("g", {},
        svg("title", {}, `${f.members[model]}, stage ${stage}, microbatch ${microbatch}, ${direction === "F" ? "forward" : "recompute and backward"}: ${duration(start_ns)} – ${duration(finish_ns)}`),
        svg("rect", { x: x(start_ns), y: i * rowHeight + 2, width: Math.max(0.5, room - 0.8), height: rowHeight - 4, fill: fillColor }),
        room > 16 ? svg("text", { x: x(start_ns) + room / 2, y: i * rowHeight + 17, "text-anchor": "middle", style: `fill:${inkOn(fillColor)};font-size:10px` }, microbatch) : null);
    })]);
  return h("details", { open: true }, h("summary", {}, `Pipeline of ${f.name}`),
    h("p", { class: "lead" }, `Microtasks of both models in ${duration(f.makespan_ns)}, pipeline ${percent(busy)} full; pale: forward, dark: recompute and backward; the number is the microbatch.`,
      f.second_model_reversed ? ` ${f.members[1]} runs through the positions in reversed order.` : ""),
    h("div", { class: "legend" }, f.members.map((m) => h("span", {}, swatch(operatorColors[m]), m))),
    h("div", { class: "diagram" }, svg("svg", { viewBox: `0 0 ${width} ${f.positions.length * rowHeight}`, style: "width:100%;min-width:560px", role: "img",
      "aria-label": `Pipeline of ${f.name}` }, rows)));
}

function memorySection() {
  const limit = report.score.memory_limit_bytes;
  const whole = Math.max(report.hardware.memory_bytes, report.score.max_peak_bytes) * 1.01;
  const names = new Set();
  const rows = report.memory.map((region) => {
    const m = region.memory;
    const pieces = [];
    const add = (owner, parts, kind, when) => {
      for (const [n, bytes] of Object.entries(parts)) {
        if (!bytes) continue;
        names.add(n);
        pieces.push({ text: owner, color: part(MEMORY_PARTS, n)[0], amount: bytes, kind,
          tip: [h("strong", {}, `${owner}: ${n}`), pairs([["what", part(MEMORY_PARTS, n)[1]], ["held", when], ["size", size(bytes)]])] });
      }
    };
    for (const [model, parts] of Object.entries(m.persistent)) add(model, parts, "", "always");
    if (m.transient_worst) add(m.transient_worst, m.transient[m.transient_worst], "transient", `while ${m.transient_worst} runs`);
    const bar = track(pieces, whole, `${region.label}: peak ${size(m.peak_bytes)}, always ${size(m.persistent_bytes)}, largest operator ${m.transient_worst ?? "none"} ${size(m.transient_bytes)}`);
    bar.append(h("span", { class: "limit", style: `left:${(100 * limit) / whole}%` }));
    return [h("div", { class: "name" }, region.label, h("small", {}, ` ×${region.devices.length}`)), bar,
      h("div", { class: "amount" }, size(m.peak_bytes), h("small", {}, ` ${percent(m.peak_bytes / limit)}`))];
  });
  const detail = report.memory.map((region) => {
    const list = (kind, owners) => Object.entries(owners).flatMap(([owner, parts]) => Object.entries(parts).filter(([, b]) => b).map(([n, b]) =>
      [kind, owner, part(MEMORY_PARTS, n)[1], size(b)]));
    return h("details", {}, h("summary", {}, `All parts on ${region.label}`),
      table(["held", "owner", "part", "size"], [...list("always", region.memory.persistent), ...list("meanwhile", region.memory.transient)], { right: [3], lead: region.label }));
  });
  return h("section", { id: "memory" }, h("h2", {}, "Memory"),
    h("p", { class: "lead" }, "Peak of each GPU: what it always holds (plain) and what its hungriest operator adds while it runs (hatched), against the limit of ",
      `${size(limit)} (dashed; ${size(report.hardware.memory_bytes)} less the runtime's reserve).`),
    legendOf(MEMORY_PARTS, names),
    h("div", { class: "bars" }, rows, h("span"), axis(whole, size, 2 ** 30), h("span")), detail);
}

function gapText(found) {
  if (found.optimality_gap == null || found.lower_bound_s == null) return "not known";
  if (found.optimality_gap === 0) return "nothing: the plan is proven optimal";
  return `at most ${percent(found.optimality_gap)} of the step time: no plan takes less than ${seconds(found.lower_bound_s)} per step`;
}

function alternativesSection() {
  const s = report.score;
  const rows = [{ name: "this plan", ...s }, ...report.alternatives];
  const slowest = Math.max(...rows.map((r) => r.step_time_s)) || 1;
  const change = (r) => (r.name === "this plan" || !s.step_time_s ? "" : Math.abs(r.step_time_s / s.step_time_s - 1) < 5e-6 ? "same" : `${r.step_time_s >= s.step_time_s ? "+" : "−"}${percent(Math.abs(r.step_time_s / s.step_time_s - 1))}`);
  const body = rows.map((r) => [r.name, track([{ text: "", color: r.name === "this plan" ? "#3f74c6" : "#7b7f88", amount: r.step_time_s,
    tip: [h("strong", {}, r.name), pairs([["step time", seconds(r.step_time_s)]])] }], slowest, `${r.name} ${seconds(r.step_time_s)}`),
  seconds(r.step_time_s), change(r), r.indistinguishable ? "indistinguishable" : "", digits(r.tokens_per_s), digits(r.gpu_hours_per_step)]);
  const found = report.search;
  return h("section", { id: "alternatives" }, h("h2", {}, "What other plans would have cost"),
    report.alternatives.length
      ? [h("p", { class: "lead" }, "Greedy gives each operator in turn its best placement and layout; concurrent divides the GPUs among operators that can run at the same time. Each is the best of its kind that fits into memory, over all structures. A warm start is the plan that the search was told to start from."),
        table(["plan", "step time", "", "", "", "tokens/s", "GPU-hours per step"], body, { right: [2, 3, 5, 6], lead: "Other plans" })]
      : h("p", { class: "lead" }, found && found.method !== "none" ? "The search kept no other plan that fits." : "This plan was given, not searched: there is nothing to compare it with."),
    found && found.method !== "none" ? [pairs([
      ["found by", `${found.method}, ${plural(found.evaluations ?? 0, "evaluation")}, ${plural(found.cache_hits ?? 0, "cache hit")}, seed ${found.seed ?? 0}, ended by ${found.termination ?? "none"}`],
      ["left to gain", gapText(found)],
      found.ties ? ["as fast, perhaps", `${found.ties.indistinguishable} of ${plural(found.ties.kept, "other plan")} that the search kept: the ${percent(found.ties.coverage)} interval of the difference in step time contains 0`] : null,
      ["candidates", Object.entries(found.candidates ?? {}).map(([v, n]) => `${v} ${n.toLocaleString("en")}`).join(", ") || "–"]].filter(Boolean)),
    (found.notes ?? []).length ? h("ul", {}, found.notes.map((n) => h("li", {}, n))) : null] : null);
}

function nodesSection() {
  const details = h("details", {}, h("summary", {}, `All ${plural(report.nodes.length, "node")} as a table`));
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    details.append(table(["id", "node", "reserves", "start", "finish", "time", "payload", "critical"], report.nodes.map((n) =>
      [n.id, n.label, n.allocation, moment(n.start_ns), moment(n.finish_ns), duration(n.finish_ns - n.start_ns), n.payload_bytes ? size(n.payload_bytes) : "–", n.critical ? "yes" : ""]),
    { right: [0, 3, 4, 5, 6], lead: "Nodes" }));
  });
  return h("section", { id: "nodes" }, h("h2", {}, "Nodes"), details);
}
