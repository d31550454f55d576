"""The page in a real browser: it draws, reacts, fits its window, and says nothing on the console.

Needs Chromium (Debian: chromium); without it these tests are skipped.
"""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from passes.evaluate import evaluate
from rpegc.report import Report, build, render
from tests.rpegc.conftest import CASES, case_problem, configured

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian package chromium)")

QUIET = [
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
]

# Without a window there may be no frames to paint in, so that painting follows the (virtual) clock instead.
FRAMES = "<script>window.requestAnimationFrame = (paint) => setTimeout(paint, 1);</script>"

# Tools for what a test does in the page: `later` waits until everything pending is painted.
PROBE = """
const body = document.querySelector(".plot canvas");
const later = () => new Promise((done) => setTimeout(done, 50));
const press = (key) => body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const bars = () => Number(body.dataset.bars);
const said = {};
addEventListener("load", async () => {
  await later();
  %s
  document.documentElement.dataset.said = JSON.stringify(said);
});
"""


def browse(
    folder: Path, page: bytes, script: str, *, width: int = 1280, dark: bool = False
) -> tuple[dict, str]:
    """What `script` put into `said` in a window of that width, and what stood on the console.

    Leaves `shot.png` in the folder.
    """
    probe = f"<script>{PROBE % script}</script>".encode()
    file = folder / "page.html"
    page = page.replace(b"<body>", b"<body>" + FRAMES.encode(), 1).replace(b"</body>", probe + b"</body>")
    file.write_bytes(page)
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [CHROMIUM or "", *QUIET, *root, *scheme, f"--user-data-dir={folder / 'profile'}"]
    command += [f"--window-size={width},1400", "--virtual-time-budget=6000"]
    command += ["--dump-dom", f"--screenshot={folder / 'shot.png'}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r'data-said="([^"]*)"', done.stdout)
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return (json.loads(html.unescape(found[1])) if found else {}), console


def report_of_case(name: str) -> Report:
    return build(evaluate(configured(case_problem(CASES / "decided" / f"{name}.json"))))


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of_case("03-ppo-async-disjoint-split")


DRAWN = """
said.whole = bars();
document.getElementById("toggle-critical").click();
[...document.querySelectorAll(".tools button")][1].click();
await later();
const image = body.getContext("2d").getImageData(0, 0, body.width, body.height).data;
const count = {};
for (let i = 0; i < image.length; i += 4) {
  const color = (image[i] << 16) | (image[i + 1] << 8) | image[i + 2];
  count[color] = (count[color] ?? 0) + 1;
}
said.pixels = {};
for (const [o, c] of Object.entries(operatorColors)) said.pixels[o] = count[parseInt(c.slice(1), 16)] ?? 0;
said.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
said.sections = [...document.querySelectorAll("section")].map((s) => s.id);
said.boxes = document.querySelectorAll("#graph .box").length;
said.regions = document.querySelectorAll("#memory .track").length;
said.ink = getComputedStyle(document.body).color;
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (800, True)])
@pytest.mark.parametrize("name", ["03-ppo-async-disjoint-split", "13-ppo-fused-training"])
def test_everything_is_drawn(tmp_path: Path, name: str, width: int, dark: bool) -> None:
    report = report_of_case(name)
    said, console = browse(tmp_path, render(report), DRAWN, width=width, dark=dark)
    assert console == ""
    operators = sum(report.nodes[i].kind == "Op" for lane in report.lanes for i in lane.nodes)
    assert operators <= said["whole"] <= sum(len(lane.nodes) for lane in report.lanes)
    assert said["pixels"].keys() == {o.name for o in report.operators}
    assert min(said["pixels"].values()) > 50
    assert said["overflow"] == 0
    wanted = "schedule critical plan times memory graph alternatives nodes"
    assert said["sections"] == wanted.split()
    assert said["boxes"] == len(report.graph.vertices)
    assert said["regions"] == len(report.memory)
    assert said["ink"] == ("rgb(231, 234, 240)" if dark else "rgb(26, 29, 35)")
    assert (tmp_path / "shot.png").stat().st_size > 20_000


REACTS = """
said.whole = bars();
for (let i = 0; i < 6; i++) press("+");
await later();
said.near = bars();
press("0");
await later();
said.again = bars();
const box = body.getBoundingClientRect();
const at = (x, y) => ({ clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true });
for (let i = 0; i < 6; i++) body.dispatchEvent(new WheelEvent("wheel", { deltaY: -400, ...at(20, 20) }));
await later();
said.wheel = bars();
[...document.querySelectorAll(".tools button")][0].click();
said.rows = document.querySelectorAll(".lane").length;
document.getElementById("toggle-gpus").click();
said.opened = document.querySelectorAll(".lane.single").length;
document.getElementById("toggle-gpus").click();
said.closed = document.querySelectorAll(".lane").length;
press("n");
said.first = document.querySelector(".picked strong").textContent;
press("n");
said.second = document.querySelector(".picked strong").textContent;
press("Escape");
said.none = document.querySelector(".picked strong");
await later();
body.dispatchEvent(new PointerEvent("pointermove", at(8, 12)));
said.tip = document.getElementById("tip").hidden ? "" : document.getElementById("tip").innerText;
document.querySelector("#nodes details").open = true;
await later();
said.table = document.querySelectorAll("#nodes tbody tr").length;
"""


def test_it_reacts(tmp_path: Path, report: Report) -> None:
    said, console = browse(tmp_path, render(report), REACTS)
    assert console == ""
    assert said["near"] < said["whole"] == said["again"]
    assert said["wheel"] < said["whole"]
    assert said["rows"] == said["closed"] == len(report.lanes)
    assert said["opened"] == report.gpus
    labels = {n.id: n.label for n in report.nodes}
    assert [said["first"], said["second"]] == [labels[i] for i in report.critical_path[:2]]
    assert said["none"] is None
    assert said["tip"].startswith("Op actor_gen@0.1")
    assert said["table"] == len(report.nodes)


def test_a_mistake_in_the_page_would_be_seen(tmp_path: Path, report: Report) -> None:
    broken = render(report).replace(b"function header() {", b"function header() { absent();")
    _, console = browse(tmp_path, broken, "")
    assert "absent is not defined" in console
