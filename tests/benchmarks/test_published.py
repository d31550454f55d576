"""The comparison with published measurements is that of the code, and its errors stay small."""

from functools import cache

import pytest

from benchmarks import published
from benchmarks.published_rows import SETS, between_nodes, read
from calib.hardware import load_hardware


@cache
def outcomes():
    return published.run()


def mape(name, part="validation"):
    members = published.by_set(outcomes()[0])[name, part]
    return published.errors(members)[0].mape


def test_every_row_is_predicted_or_left_out_with_a_reason():
    found, missing = outcomes()
    assert len(found) + sum(missing.values()) == sum(len(read(file)) for file in SETS)
    assert all(reason for _, reason in missing)


def test_the_results_are_those_of_the_code():
    found, _ = outcomes()
    assert published.predictions(found) == (published.OUT / "predictions.csv").read_bytes()


def test_nothing_calibrates_and_validates():
    parts = {}
    for case in (o.case for o in outcomes()[0]):
        parts.setdefault((case.operator.model, case.hardware.provenance.name, case.set), set()).add(case.part)
    assert all(len(p) == 1 for p in parts.values())


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("training, one node, vTrain", 0.06),
        ("training, several nodes, vTrain", 0.09),
        ("training, Megatron-LM", 0.02),
        ("static batch, TensorRT-LLM", 0.13),
        ("per token, serving", 0.10),
        ("memory, activations", 0.01),
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
        assert value > 0.8 if what.endswith("other model") else abs(value) < 0.1


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
