// Put the page together.

{
  const sections = [scheduleSection, criticalSection, planSection, timeSection, memorySection, graphSection,
    alternativesSection, nodesSection].map((make) => make());
  document.getElementById("head").append(...header());
  document.getElementById("contents").append(...sections.map((s) =>
    h("a", { href: `#${s.id}` }, s.querySelector("h2").textContent)));
  document.getElementById("main").append(...sections);
  document.getElementById("foot").append(
    `Made by rpegc from ${report.stage} ${report.stage_id}. The same data as JSON: rpegc report FILE --json.`,
    report.hardware.notes ? ` Hardware: ${report.hardware.notes}` : "");
}
