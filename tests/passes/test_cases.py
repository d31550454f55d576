"""The worked cases: every node, time, start, finish and peak as an independent implementation has them."""

import json
from pathlib import Path

import msgspec
import pytest

from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration
from passes.evaluate import evaluate
from passes.microtasks import list_schedule, schedule_pair
from passes.verify import verify

CASES = Path(__file__).parent.parent / "cases"
FILES = sorted(CASES.glob("*/*.json"))


def load(path: Path) -> tuple[Configuration, dict]:
    """The configuration of a case and what is expected of it."""
    data = json.loads(path.read_text())
    expected = data.pop("expected")
    del data["fields"]
    problem = msgspec.convert(data, Problem)
    assert verify(problem) == []
    plan = {v: msgspec.convert(msgspec.to_builtins(p), Placement) for v, p in problem.plan.items()}
    return Configuration(problem=msgspec.structs.replace(problem, plan={}), plan=plan), expected


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_case(path):
    configuration, expected = load(path)
    actual = msgspec.json.decode(msgspec.json.encode(evaluate(configuration)))
    for key in ("makespan_ns", "makespan_both_reserved_ns", "placement_order", "critical_path",
                "memory_feasible", "max_peak_bytes", "devices"):  # fmt: skip
        assert actual[key] == expected[key], key
    for key in ("score_tokens_per_s", "score_pen", "utilisation", "P_eff"):
        assert actual[key] == pytest.approx(expected[key], rel=1e-12), key
    assert len(actual["nodes"]) == len(expected["nodes"])
    for mine, theirs in zip(actual["nodes"], expected["nodes"], strict=True):
        for key in ("id", "kind", "vertex", "vertex_index", "step", "time_ns", "start_ns", "finish_ns",
                    "rank_ns", "reserved"):  # fmt: skip
            assert mine[key] == theirs[key], (key, theirs)
        for key in ("phase", "container", "model", "src_phase", "source", "source_step"):
            assert mine[key] == theirs.get(key), (key, theirs)
        assert mine["payload_bytes"] == theirs.get("payload_bytes", 0)
        assert mine["parts_s"] == pytest.approx(theirs["parts_s"], rel=1e-12, abs=1e-30)
        # The reference also lists the readers of version 0 before step tau, which E* and the order
        # edges already put first.
        assert set(mine["predecessors"]) <= set(theirs["predecessors"])


def spell(order) -> list[list[str]]:
    return [[f"{t.direction}{t.model}.{t.stage}.{t.microbatch}" for t in row] for row in order]


@pytest.mark.parametrize("case", json.loads((CASES / "microtasks.json").read_text()))
def test_microtasks(case):
    chains, expected = case["chains"], case["expected"]
    mbs, forward, backward = (tuple(c[k] for c in chains) for k in ("mb", "f_ns", "b_ns"))
    schedule = schedule_pair(case["P_p"], mbs, forward, backward)
    assert schedule.makespan_ns == expected["makespan_ns"]
    assert schedule.second_model_reversed == expected["second_model_reversed"]
    assert spell(schedule.order) == expected["order"]


@pytest.mark.parametrize("case", json.loads((CASES / "microtasks.json").read_text()))
def test_fusing_never_costs_more_than_one_after_the_other(case):
    chains, stages = case["chains"], case["P_p"]
    alone = [list_schedule(stages, (c["mb"],), (c["f_ns"],), (c["b_ns"],))[0] for c in chains]
    for chain, makespan in zip(chains, alone, strict=True):
        # 1F1B of one model: (mb + P_p - 1) forward and backward slots.
        assert makespan == (chain["mb"] + stages - 1) * (chain["f_ns"] + chain["b_ns"])
    mbs, forward, backward = (tuple(c[k] for c in chains) for k in ("mb", "f_ns", "b_ns"))
    slack = sum(c["mb"] + stages for c in chains)
    assert schedule_pair(stages, mbs, forward, backward).makespan_ns <= sum(alone) + slack
