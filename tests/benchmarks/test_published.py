"""The comparison with published measurements is that of the code, and its errors stay small."""

from functools import cache
from itertools import pairwise

import pytest

from benchmarks import published
from benchmarks.published_rows import SETS, Case, between_nodes, read
from benchmarks.published_steps import PROMPT, Step, quantiles
from calib.hardware import load_hardware
from ir_schema.device import size


@cache
def outcomes():
    return published.run()


def mape(name, part="validation"):
    members = published.by_set(outcomes()[0])[name, part]
    return published.errors(members)[0].mape


def test_every_row_is_predicted_or_left_out_with_a_reason():
    found, missing = outcomes()
    assert len(found) + sum(missing.values()) == sum(len(read(file)) for file in (*SETS, "rl_steps"))
    assert all(reason for _, reason in missing)


def test_the_results_are_those_of_the_code():
    found, _ = outcomes()
    assert published.predictions(found) == (published.OUT / "predictions.csv").read_bytes()


def test_nothing_calibrates_and_validates():
    parts = {}
    for case in (o.case for o in outcomes()[0] if isinstance(o.case, Case)):
        parts.setdefault((case.operator.model, case.hardware.provenance.name, case.set), set()).add(case.part)
    assert all(len(p) == 1 for p in parts.values())


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("training, one node, vTrain", 0.06),
        ("training, several nodes, vTrain", 0.08),
        ("training, Megatron-LM", 0.025),
        ("static batch, TensorRT-LLM", 0.13),
        ("per token, serving", 0.10),
        ("memory, activations", 0.01),
        ("RL step, NeMo RL", 0.27),
    ],
)
def test_errors_stay_small(name, most):
    assert mape(name) < most


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("training, one node, vTrain", 0.9),
        ("training, several nodes, vTrain", 0.7),
        ("training, Megatron-LM", 0.9),
        ("static batch, TensorRT-LLM", 0.8),
        ("per token, serving", 0.9),
    ],
)
def test_intervals_hold_what_the_documentation_says(name, least):
    members = published.by_set(outcomes()[0])[name, "validation"]
    assert sum(o.within for o in members) / len(members) >= least


def test_errors_are_shared_by_layout_and_microbatch_size():
    rows = published.shared(outcomes()[0])
    correlation = {(part, what): float(value) for part, what, _, value in rows}
    for (_, what), value in correlation.items():
        assert value > 0.7 if what.endswith("other model") else abs(value) < 0.25


def test_predictions_beat_one_efficiency():
    for (name, _), members in published.by_set(outcomes()[0]).items():
        ours, theirs = published.errors(members)
        if not name.startswith("memory, state"):
            assert ours.mape < theirs.mape, name


def test_fewer_cards_slow_only_what_leaves_the_node():
    whole = load_hardware("a100-80")
    half = between_nodes(whole, 800.0)
    assert half.collective.intra == whole.collective.intra
    assert half.collective.inter.beta == 2 * whole.collective.inter.beta
    assert half.point_to_point.rack.alpha == whole.point_to_point.rack.alpha


@pytest.mark.parametrize(("mean", "longest"), [(900, 3936), (3094, 3936), (1968, 3936)])
def test_lengths_have_the_printed_mean_and_longest(mean, longest):
    points = [(0.0, 0), *quantiles(mean, longest)]
    assert points[-1] == (1.0, longest)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(points))
    between = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    assert between == pytest.approx(mean, rel=0.03)


def test_a_mean_beyond_the_longest_is_refused():
    with pytest.raises(ValueError, match="mean 5000"):
        quantiles(5000, 4000)


def test_steps_use_the_gpus_of_their_rows():
    found = [o.case for o in outcomes()[0] if isinstance(o.case, Step)]
    assert len(found) == 18
    for case in found:
        problem, plan = case.configuration.problem, case.configuration.plan
        apart = plan["generate"].allocation.overlap(plan["train"].allocation) == 0
        assert apart == (problem.graph.staleness["actor"] == 1)
        used = sum(p.allocation.gpus for p in {plan[v].allocation: plan[v] for v in plan}.values())
        assert used == size(problem.device_space) == int(case.label.split()[4])
        workload = problem.workload
        assert workload.prompt_length == PROMPT
        assert workload.sequences / workload.minibatches == 512
