"""`rpegc sweep`: values into the tree, points into figures, and what is printed of them."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_schema.base import Record
from ir_schema.problem import Problem
from passes.base import Pass
from rpegc.cli.group import run
from rpegc.diagnostics import Source
from rpegc.driver import run_pipeline
from rpegc.figures import Figures
from rpegc.frontend import build
from rpegc.pipeline import Pipeline, named_pipeline
from rpegc.sweep import points as points_module
from rpegc.sweep.points import Candidate, Point, compiled, grid, with_front
from rpegc.sweep.vary import read_variations, substitute
from rpegc.text.parser import parse

TEXT = """rpeg 1

graph small {
  cluster { hardware = "h100", racks = 1, nodes = 1, gpus = 4 }
  workload { prompts = 32, rollouts = 2, prompt_length = 64, response_length = 64 }
  model actor : lm { arch = "llama-3.2-1b", trainable = true }
  model reference : lm { arch = "llama-3.2-1b" }
  verifier exact { seconds_per_response = 1e-4 }
  use grpo { actor = actor, reference = reference, reward = exact }
}
"""

Rpegc = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rpegc(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rpegc:
    """Runs `rpegc sweep small.rpeg -O0 --jobs 1 …`; its exit code, stdout and stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    Path("small.rpeg").write_text(TEXT)

    def call(*arguments: str) -> tuple[int, str, str]:
        jobs = [] if "--jobs" in arguments else ["--jobs", "1"]
        code = run(["sweep", "small.rpeg", "-O0", *jobs, *arguments])
        return (code, *capfd.readouterr())

    return call


def candidates(*varied: str) -> list[Candidate]:
    variations = read_variations(varied, len(TEXT) + 1)
    return grid(parse(TEXT), Source("small.rpeg", TEXT), variations, Path())


def varied(option: str) -> Problem:
    """The problem with the one value of `option`."""
    (candidate,) = candidates(option)
    assert candidate.problem is not None
    return candidate.problem


# values into the tree


@pytest.mark.parametrize(
    ("option", "look", "value"),
    [
        ("cluster.nodes=2 * 2", lambda p: p.device_space, (1, 4, 4)),
        ("workload.prompts=(8 + 8) * 2", lambda p: p.workload.prompts, 32),
        ("workload.length_quantiles=[[0.5, 16], [1.0, 64]]", lambda p: len(p.workload.length_quantiles), 2),
        ('model.actor.arch="qwen3-1.7b"', lambda p: p.models["actor"].layers, 28),
        ("model.actor.staleness=1", lambda p: p.graph.staleness, {"actor": 1}),
        ("options.cost_model=paper", lambda p: p.options.cost_model, "paper"),
        ("search.objective=efficiency", lambda p: p.search.objective, "efficiency"),
        ("search.staleness.actor=[0, 1]", lambda p: p.search.staleness, {"actor": (0, 1)}),
        ("run.optimizer.learning_rate=1e-4", lambda p: p.run.optimizer.learning_rate, 1e-4),
        ("plan.actor_gen.waves=2", lambda p: p.plan["actor_gen"].waves, 2),
        ('"verifier" . "exact" . workers = 3', lambda p: p.host["reward_inf"].workers, 3),
    ],
)
def test_every_key_of_the_language_can_be_varied(
    option: str, look: Callable[[Any], object], value: object
) -> None:
    assert look(varied(option)) == value


def test_presets_are_expanded_after_the_values_are_in() -> None:
    sizes = {c.name: c.elements for c in varied("workload.prompts=48").graph.containers}
    assert sizes["r"] == 48 * 2


@settings(max_examples=20, deadline=None)
@given(prompts=st.integers(1, 10**6), nodes=st.integers(1, 64))
def test_substituting_is_writing(prompts: int, nodes: int) -> None:
    file = parse(TEXT)
    for v in read_variations([f"workload.prompts={prompts}", f"cluster.nodes={nodes}"], len(TEXT) + 1):
        file = substitute(file, v, v.choices[0].value)
    written = TEXT.replace("prompts = 32", f"prompts = {prompts}").replace("nodes = 1", f"nodes = {nodes}")
    assert file == parse(written)
    assert build(file, Path())[0] == build(parse(written), Path())[0]


def test_the_last_key_changes_fastest() -> None:
    found = candidates("cluster.nodes=1,2", 'model.actor.arch="llama-3.2-1b","qwen3-0.6b"')
    assert [tuple(c.values.values()) for c in found] == [
        ("1", "llama-3.2-1b"),
        ("1", "qwen3-0.6b"),
        ("2", "llama-3.2-1b"),
        ("2", "qwen3-0.6b"),
    ]


def test_findings_about_a_point_stand_in_the_file() -> None:
    (candidate,) = candidates("workload.prompts=7")
    span = candidate.source.source_map["workload.prompts"]
    assert TEXT[span.start : span.end] == "prompts = 32"
    (added,) = candidates("options.steps=4")
    span = added.source.source_map["options.steps"]
    assert TEXT[span.start : span.end] == "small"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing is varied"),
        (["cluster=2"], "write `cluster.KEY=…`"),
        (["cluster.nodes"], "no values are given"),
        (["cluster.nodes="], "no values are given"),
        (["cluster.nodes=2,"], "expected a value, found the end"),
        (["cluster.nodes=2 3"], "expected `,` or the end, found `3`"),
        (["cluster.nodes=[2"], "`[` is never closed"),
        (["cluster.nodess=2"], "did you mean `nodes`?"),
        (["clutser.nodes=2"], "did you mean `cluster`?"),
        (["about.x=2"], "no statement `about` has keys to vary"),
        (["cluster..nodes=2"], "expected a name in the key"),
        (['cluster."nodes=2'], "malformed key"),
        (["model.actr.arch=x"], "did you mean `actor`?"),
        (["model.actor=x"], "write `model.NAME.KEY=…`"),
        (["cluster.nodes.x=2"], "`nodes` is no block"),
        (["cluster.nodes=2,many"], "expected a number, found `many`"),
        (["cluster.nodes=1/0"], "division by zero"),
        (["model.actor.arch=llama-2-7b"], "strings need quotes"),
        (['model.actor.arch="lama-2-7b"'], "unknown model `lama-2-7b`"),
        (["use.grpo.actr=actor"], "`use grpo` has no role `actr`"),
        (["cluster.nodes=1", "cluster.nodes=2"], "`cluster.nodes` is varied twice"),
    ],
)
def test_what_cannot_be_varied_is_said_before_anything_is_compiled(
    rpegc: Rpegc, options: list[str], message: str
) -> None:
    code, out, err = rpegc(*(word for option in options for word in ("--vary", option)))
    assert (code, out) == (2, "")
    assert message in err
    if options and "twice" not in message:
        assert f"1 | {options[0]}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out", "--csv", "x.csv"], "both say where to write"),
        (["--json", "--csv", "-"], "both need stdout"),
        (["--csv", "none/x.csv"], "there is no directory `none`"),
        (["--plot", "x.bmp"], "names no format of a plot"),
    ],
)
def test_outputs_that_cannot_be_are_refused_first(rpegc: Rpegc, arguments: list[str], message: str) -> None:
    code, out, err = rpegc("--vary", "cluster.nodes=1", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_missing_matplotlib_is_named(rpegc: Rpegc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = rpegc("--vary", "cluster.nodes=1", "--plot", "x.png")
    assert code == 2
    assert "pip install 'rpeg[plots]'" in err


def test_only_text_can_be_varied(rpegc: Rpegc) -> None:
    Path("small.rpeg").write_text('{"name": "x"}')
    code, _, err = rpegc("--vary", "cluster.nodes=1")
    assert code == 2
    assert "`rpegc fmt small.rpeg`" in err


def test_syntax_errors_of_the_file_stand_in_the_file(rpegc: Rpegc) -> None:
    Path("small.rpeg").write_text(TEXT.replace("prompts = 32", "prompts = = 32"))
    code, out, err = rpegc("--vary", "cluster.nodes=1")
    assert (code, out) == (1, "")
    assert "--> small.rpeg:5:" in err


# points into figures


def test_the_figures_are_those_of_the_compiler(rpegc: Rpegc, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = rpegc("--vary", "cluster.nodes=1,2", "--json")
    assert code == 0
    assert "2 of 2: cluster.nodes = 2: " in err
    sweep = json.loads(out)
    assert (sweep["keys"], sweep["interrupted"]) == (["cluster.nodes"], False)
    for point, nodes in zip(sweep["points"], (1, 2), strict=True):
        Path("point.rpeg").write_text(TEXT.replace("nodes = 1", f"nodes = {nodes}"))
        assert run(["point.rpeg", "-O0", "-q", "--json"]) == 0
        outcome = json.loads(capfd.readouterr().out)
        figures = point["figures"]
        shared = "tokens_per_second step_time_s utilization peak_memory_bytes optimality_gap"
        for name in shared.split():
            assert figures[name] == outcome[name]
        assert point["plan_id"] == outcome["plan_id"]
        assert point["gpus"] == 4 * nodes
        tokens_per_step = figures["tokens_per_second"] * figures["step_time_s"]
        assert tokens_per_step == pytest.approx(32 * 2 * (64 + 64))
        hours = point["gpus"] * figures["step_time_s"] / 3600
        assert figures["gpu_hours_per_million_tokens"] == pytest.approx(hours / (tokens_per_step / 1e6))
        per_gpu = figures["tokens_per_second"] / point["gpus"]
        assert figures["tokens_per_second_per_gpu"] == pytest.approx(per_gpu)


def test_a_grid_may_be_too_large(rpegc: Rpegc) -> None:
    values = ",".join(map(str, range(1, 71)))
    code, out, err = rpegc("--vary", f"cluster.nodes={values}", "--vary", f"workload.prompts={values}")
    assert (code, out) == (2, "")
    assert "the grid has 4,900 points" in err


def test_points_without_a_plan_are_lines(rpegc: Rpegc) -> None:
    code, out, err = rpegc("--vary", "workload.prompts=0,32", "--csv", "out.csv")
    assert code == 0
    assert "E303: `workload.prompts` is 0" in out
    assert "error[" not in err
    first, second = csv.DictReader(io.StringIO(Path("out.csv").read_text()))
    assert (first["code"], first["tokens_per_second"], first["front"]) == ("E303", "", "false")
    assert (second["code"], second["fits"], second["front"]) == ("", "true", "true")
    assert float(second["tokens_per_second"]) > 0
    assert "error[E303]" in rpegc("--vary", "workload.prompts=0,32", "-v")[2]


def test_only_a_sweep_without_any_plan_fails(rpegc: Rpegc) -> None:
    code, out, err = rpegc("--vary", "workload.epochs=0", "--vary", "cluster.nodes=1,2")
    assert code == 1
    assert out.count("E303") == 2
    assert err.count("error[E303]") == 1
    assert "--> small.rpeg:5:" in err


def test_results_do_not_depend_on_jobs(rpegc: Rpegc) -> None:
    arguments = ("--vary", "cluster.nodes=1,2", "--vary", "workload.prompts=16,0", "--csv", "-", "-q")
    alone, together = rpegc(*arguments, "--jobs", "1"), rpegc(*arguments, "--jobs", "2")
    assert alone == together
    assert alone[1].count("\n") == 5


def test_everything_is_written_into_a_directory(rpegc: Rpegc) -> None:
    pytest.importorskip("matplotlib")
    code, out, _ = rpegc("--vary", "cluster.nodes=1,2", "--vary", "workload.prompts=16,32", "-o", "a/b")
    assert code == 0
    assert out.startswith("cluster.nodes  workload.prompts  GPUs")
    assert Path("a/b/sweep.csv").read_text().count("\n") == 5
    assert Path("a/b/sweep.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupt_keeps_what_is_done(rpegc: Rpegc, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted_at_second(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return run_pipeline(*arguments, **options)

    monkeypatch.setattr(points_module, "run_pipeline", interrupted_at_second)
    code, out, err = rpegc("--vary", "cluster.nodes=1,2,3", "--json")
    assert code == 130
    assert "interrupted: 1 of 3 points are done" in err
    sweep = json.loads(out)
    assert sweep["interrupted"] is True
    assert [p["values"] for p in sweep["points"]] == [{"cluster.nodes": "1"}]
    calls.append(())
    code, out, err = rpegc("--vary", "cluster.nodes=1")
    assert (code, out) == (130, "")


@dataclass(frozen=True)
class Fatal(Pass[Problem, Problem]):
    """Ends its process where there are 13 prompts."""

    name: ClassVar[str] = "fatal"
    summary: ClassVar[str] = "die"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Problem

    def run(self, stage: Problem) -> Problem:
        if stage.workload.prompts == 13:
            os._exit(1)
        return stage


def test_a_process_that_dies_costs_its_points_only() -> None:
    found = candidates("workload.prompts=13,32,16")
    pipeline = Pipeline((Fatal(), *named_pipeline("O0").passes))
    points = dict(compiled(found, pipeline, 2))
    assert sorted(points) == [0, 1, 2]
    assert [d.code for d in points[0].diagnostics] == ["E990"]
    # One other point at most is compiled beside it when it dies.
    assert [points[1].figures, points[2].figures].count(None) <= 1


# the Pareto front


def point(tokens: float, hours: float, fits: bool = True) -> Point:
    figures = Figures(
        tokens_per_second=tokens,
        tokens_per_second_per_gpu=1.0,
        step_time_s=1.0,
        gpu_hours_per_million_tokens=hours,
        utilization=0.5,
        peak_memory_bytes=1,
        memory_limit_bytes=2,
        optimality_gap=None,
        fits=fits,
    )
    return Point(values={}, gpus=1, figures=figures)


def test_the_front_takes_equals_and_leaves_out_what_does_not_fit() -> None:
    failed = Point(values={}, gpus=None)
    found = [point(2, 2), point(2, 2), point(2, 3), point(1, 1), point(9, 0.1, fits=False), failed]
    assert [p.front for p in with_front(found)] == [True, True, False, True, False, False]


LEVELS = st.integers(1, 5).map(float)


@given(st.lists(st.builds(point, LEVELS, LEVELS, st.booleans()), max_size=12))
def test_every_plan_that_fits_is_on_the_front_or_beaten_by_it(found: list[Point]) -> None:
    def key(p: Point) -> tuple[float, float]:
        assert p.figures is not None
        return p.figures.tokens_per_second, -p.figures.gpu_hours_per_million_tokens

    marked = with_front(found)
    front = [key(p) for p in marked if p.front]
    assert all(p.figures is not None and p.figures.fits for p in marked if p.front)
    for p in marked:
        beaten = any(f != key(p) and f[0] >= key(p)[0] and f[1] >= key(p)[1] for f in front)
        assert p.figures is not None
        assert p.front != beaten if p.figures.fits else not p.front
