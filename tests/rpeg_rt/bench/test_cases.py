"""Which operators a grid means, and what their rows are."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ir_schema.problem import Layout, Placement, Workload
from ir_schema.samples import Grid, OperatorCase
from passes.cost.lengths import response_quantile
from rpeg_rt.bench.cases import calibrating, examining, expand, impossible, members, read_grid
from rpeg_rt.bench.subject import response_lengths, token_rows
from rpeg_rt.failure import FileError
from tests.rpeg_rt.engine.harness import WORKLOAD

MODEL = examining(False, True)[0].models["lm"]
ALONE = Placement(
    origin=(0, 0, 0),
    extent=(1, 1, 1),
    data_parallel=1,
    pipeline_parallel=1,
    tensor_parallel=1,
    microbatches=1,
)
CASE = OperatorCase(role="training", model=MODEL, workload=WORKLOAD, placement=ALONE)


def test_the_default_grids_are_large_enough_and_have_no_model_in_common() -> None:
    for gpu in (False, True):
        calibration = expand(calibrating(gpu, False), [4])
        examined = expand(examining(gpu, False), [4])
        assert len(examined) >= 60
        assert {c.role for c in examined} == {c.role for c in calibration}
        assert {c.placement.layout.gpus for c in examined} == {1, 2, 4}
        for cases in (calibration, examined):
            layouts = {c.placement.layout for c in cases}
            assert {x.data_parallel > 1 for x in layouts} == {True, False}
            assert {x.pipeline_parallel > 1 for x in layouts} == {True, False}
            assert {x.tensor_parallel > 1 for x in layouts} == {True, False}
        assert not {repr(c.model) for c in examined} & {repr(c.model) for c in calibration}
        assert calibration[0].role == "inference"
        assert len(expand(examining(gpu, False), [2])) >= 60
        for grids in (calibrating(gpu, True), examining(gpu, True)):
            assert expand(grids, [1])


def side_by_side(count: int) -> Layout:
    return Layout(data_parallel=count, pipeline_parallel=1, tensor_parallel=1)


def test_a_layout_takes_whole_nodes_once_it_is_larger_than_one() -> None:
    layouts = (side_by_side(2), side_by_side(4))
    grid = Grid(models={"m": MODEL}, roles=("inference",), workloads=(WORKLOAD,), layouts=layouts)
    assert [c.placement.extent for c in expand([grid], [2, 2])] == [(1, 1, 2), (1, 2, 2)]
    assert [c.placement.extent for c in expand([grid], [4])] == [(1, 1, 2), (1, 1, 4)]
    assert [c.placement.extent for c in expand([grid], [3, 3])] == [(1, 1, 2)]


def test_an_operator_runs_on_the_workers_of_its_allocation() -> None:
    nodes = ((0, 1, 2), (3, 4))
    for extent, ranks in {(1, 1, 3): (0, 1, 2), (1, 2, 1): (0, 3), (1, 2, 2): (0, 1, 3, 4)}.items():
        assert members(replace(ALONE, extent=extent), nodes) == ranks


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"placement": replace(ALONE, data_parallel=2)}, "a layout of 2 workers on an allocation of 1"),
        ({"placement": replace(ALONE, extent=(1, 1, 3))}, r"there is no allocation .* \(1, 1, 3\)"),
        ({"placement": replace(ALONE, microbatches=13)}, "12 sequences are too few for 13 microbatches"),
        ({"workload": replace(WORKLOAD, minibatches=5)}, "4 prompts are too few"),
        ({"placement": replace(ALONE, pipeline_parallel=2), "model": replace(MODEL, layers=3)}, "3 layers"),
        ({"role": "generation", "model": replace(MODEL, head="scalar")}, "without vocabulary head"),
        ({"role": "generation", "workload": replace(WORKLOAD, length_quantiles=((1.0, 8),))}, "at given len"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_told(change: dict[str, object], told: str) -> None:
    assert not impossible(CASE, [2])
    case = replace(CASE, **change)
    with pytest.raises(FileError, match=rf"case 0 of the grid cannot be measured: .*{told}"):
        expand([Grid(cases=(case,))], [2])


def test_a_grid_of_nothing_and_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no operator of the grid can run on 2 workers"):
        expand([Grid(models={"m": MODEL}, workloads=(WORKLOAD,), layouts=(side_by_side(4),))], [2])
    path = tmp_path / "grid.json"
    with pytest.raises(FileError, match=r"cannot read the grid .*grid\.json: No such file"):
        read_grid(path)
    path.write_text(json.dumps({"models": {}, "role": ["training"]}))
    with pytest.raises(FileError, match=r"not a grid of operators: .*`role`"):
        read_grid(path)
    degrees = {"data_parallel": 3, "pipeline_parallel": 1, "tensor_parallel": 1}
    path.write_text(json.dumps({"roles": ["training"], "layouts": [degrees]}))
    assert read_grid(path) == Grid(roles=("training",), layouts=(side_by_side(3),))


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("models", {"m": replace(MODEL, attention_heads=0)}, "`models.m.attention_heads` is 0"),
        ("models", {"m": replace(MODEL, layers=-1)}, "`models.m.layers` is -1"),
        ("workloads", [replace(WORKLOAD, prompt_length=0)], "`workloads.0.prompt_length` is 0"),
        ("layouts", [side_by_side(1), side_by_side(0)], "`layouts.1.data_parallel` is 0"),
        ("microbatches", [1, -2], "`microbatches.1` is -2"),
        ("cases", [replace(CASE, placement=replace(ALONE, tensor_parallel=0))], "`cases.0.placement.tensor"),
    ],
)
def test_values_that_cannot_be_are_told(part: str, value: object, told: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_bytes(msgspec.json.encode({part: value}))
    with pytest.raises(FileError, match=f"cannot be measured: {told}"):
        read_grid(path)


@settings(deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 3), st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True)
)
def test_responses_have_the_lengths_that_the_cost_model_expects(
    prompts: int, rollouts: int, ends: list[int]
) -> None:
    ends.sort()
    points = tuple(((i + 1) / len(ends), t) for i, t in enumerate(ends))
    w = Workload(
        prompts=prompts, rollouts=rollouts, prompt_length=3, response_length=ends[-1], length_quantiles=points
    )
    n = w.sequences
    expected = [response_quantile(w, (i + 0.5) / n) for i in range(n)]
    found = np.sort(response_lengths(w))
    assert ((found >= np.array(expected) - 1e-9) & (found < np.array(expected) + 1 + 1e-9)).all()
    rows = token_rows(w, 50).numpy()
    assert (np.sort((rows >= 0).sum(1)) == found + 3).all()
    assert rows.max() < 50
    assert (rows[:, :3] >= 0).all()


def test_without_breakpoints_all_responses_are_longest() -> None:
    assert set(response_lengths(WORKLOAD)) == {WORKLOAD.response_length}
