"""Sequences split over GPUs, from a problem's text through the command lines to a trace that is checked."""

from pathlib import Path

import msgspec
import pytest

from ir_schema.trace import Complete, Line
from rpeg_rt.cli import main
from rpeg_rt.failure import PreflightError
from rpeg_rt.load import load_plan
from rpeg_rt.preflight import Machine, check
from rpeg_rt.trace import read_trace
from rpeg_rt.verify import verify_trace
from rpegc.cli.group import run as rpegc
from tests.rpeg_rt.plans import colocated, executable, place, problem, write_prompts

replace = msgspec.structs.replace

SOURCE = """\
rpeg 1

graph split_sequences {
  cluster { hardware = "cpu-2core", racks = 1, nodes = 1, gpus = 2 }
  workload { prompts = 4, rollouts = 2, prompt_length = 6, response_length = 8 }
  model actor : lm { arch = "tiny-small", trainable = true }
  model reference : lm { arch = "tiny-small" }
  verifier judge { callable = "tiny_verifier:verify", seconds_per_response = 1e-5 }
  use grpo { actor = actor, reference = reference, reward = judge }
  plan actor_gen { WHERE, data_parallel = 1, tensor_parallel = 2 }
  plan ref_inf { WHERE, data_parallel = 2, tensor_parallel = 1 }
  plan actor_train { WHERE, data_parallel = 1, tensor_parallel = 1, context_parallel = 2 }
  run { steps = 2, prompts = "prompts.jsonl" }
}
""".replace("WHERE", "origin = [0, 0, 0], extent = [1, 1, 2], pipeline_parallel = 1, microbatches = 1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    """The plan and the trace of one run."""
    directory = tmp_path_factory.mktemp("run")
    write_prompts(directory)
    source, plan, trace = (directory / name for name in ("made.rpeg", "plan.exe.json", "trace.jsonl"))
    source.write_text(SOURCE)
    assert rpegc([str(source), "--search", "none", "-q", "-o", str(plan)]) == 0
    assert main([str(plan), "--trace", str(trace)]) == 0
    assert main(["verify", str(trace), str(plan)]) == 0
    return plan, list(read_trace(trace))


def trained(lines: list[Line]) -> int:
    """Position of the first completion of the training."""
    return next(
        i
        for i, line in enumerate(lines)
        if isinstance(line, Complete) and line.parts and line.parts[0].layout == "dp1.pp1.tp1.cp2"
    )


def test_both_ranks_have_the_rows_of_the_replica(run: tuple[Path, list[Line]]) -> None:
    """References are computed by halves of the rows: each rank sends its half to the other."""
    line = run[1][trained(run[1])]
    assert isinstance(line, Complete)
    half = 4 * 8 * 4  # rows, response tokens, bytes
    assert [line.parts[r].received for r in (0, 1)] == [{1: half}, {0: half}]


@pytest.mark.parametrize(
    ("change", "rule"),
    [({"layout": "dp2.pp1.tp1"}, "layout"), ({"received": {}}, "bytes"), ({"sent": {}}, "bytes")],
)
def test_a_tampered_report_is_caught(
    run: tuple[Path, list[Line]], change: dict[str, object], rule: str
) -> None:
    path, lines = run
    at = trained(lines)
    line = lines[at]
    assert isinstance(line, Complete)
    parts = line.parts | {1: replace(line.parts[1], **change)}
    changed = [*lines[:at], replace(line, parts=parts), *lines[at + 1 :]]
    (found,) = verify_trace(load_plan(path), changed).violations
    assert found.startswith(f"{rule}: Op `actor_train`")


def test_a_generation_that_splits_sequences_is_refused() -> None:
    plan = colocated(dp=2, actor_gen=place("0-1", cp=2))
    made = executable(problem(cost_model="megatron"), plan)
    with pytest.raises(PreflightError) as refused:
        check(made, Machine(slots=4, memory_bytes=None))
    (finding,) = refused.value.missing
    assert finding.startswith("vertex `actor_gen`, model `actor`: ")
    assert "set its context_parallel to 1, not 2" in finding
