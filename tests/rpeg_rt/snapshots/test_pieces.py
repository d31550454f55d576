"""The pieces that a layout's workers write make up every slice that another layout's workers read."""

import itertools
import random
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_schema.model import ModelSpec
from ir_schema.problem import Layout
from rpeg_rt.engine import canonical_shapes, position_of, shard_map
from rpeg_rt.engine.engine import Shard
from rpeg_rt.engine.moments import Flat, sliced
from rpeg_rt.failure import FileError
from rpeg_rt.snapshots.contents import written_by
from rpeg_rt.snapshots.pieces import Pieces, weights_of, write_pieces

SPEC = ModelSpec(
    layers=2, hidden=16, ffn=32, vocabulary=131, head="lm", attention_heads=4, kv_heads=2, qkv_bias=True
)
TIED = ModelSpec(
    layers=2,
    hidden=16,
    ffn=32,
    vocabulary=131,
    head="both",
    attention_heads=4,
    kv_heads=4,
    tied_embeddings=True,
)
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)]


def wholes(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Canonical tensors that have no number twice."""
    found, at = {}, 0
    for name, shape in canonical_shapes(spec).items():
        size = torch.Size(shape).numel()
        found[name] = torch.arange(at, at + size, dtype=torch.float64).view(shape)
        at += size
    return found


def local_parameters(
    spec: ModelSpec, layout: Layout, index: int, values: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The parameters of one rank as the engine fills them; -1 in rows that pad."""
    shards = shard_map(spec, layout, position_of(index, layout))
    shapes: dict[str, list[int]] = {}
    for s in shards:
        shape = shapes.setdefault(s.parameter, list(s.shape))
        shape[s.axis] = max(shape[s.axis], s.start + s.shape[s.axis])
    made = {name: torch.full(shape, -1.0, dtype=torch.float64) for name, shape in shapes.items()}
    for s in shards:
        made[s.parameter].narrow(s.axis, s.start, s.shape[s.axis]).copy_(values[s.name][s.slices])
    return made


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([SPEC, TIED]), st.sampled_from(LAYOUTS), st.integers(1, 5), st.randoms())
def test_flat_ranges_are_taken_apart_into_slices_without_loss(
    spec: ModelSpec, layout: tuple[int, int], replicas: int, dice: random.Random
) -> None:
    """The optimizer's ranges of every rank, cut anywhere: each slice has its canonical values, all together
    have every number, and what is written into their views arrives in the range."""
    pipeline, tensor = layout
    made = Layout(data_parallel=1, pipeline_parallel=pipeline, tensor_parallel=tensor)
    values = wholes(spec)
    seen = {name: torch.zeros_like(t, dtype=torch.bool) for name, t in values.items()}
    for index in range(pipeline * tensor):
        specs = shard_map(spec, made, position_of(index, made))
        for name, parameter in local_parameters(spec, made, index, values).items():
            size = parameter.numel()
            cuts = sorted({0, size, *(dice.randrange(size + 1) for _ in range(replicas - 1))})
            for start, end in itertools.pairwise(cuts):
                flat = parameter.view(-1)[start:end].clone()
                for shard, slices, view in sliced(Flat(name, tuple(parameter.shape), start, flat), specs):
                    assert torch.equal(view, values[shard.name][slices])
                    seen[shard.name][slices] = True
                    view.fill_(-1.0)
                assert bool((flat == -1.0).all())
    assert all(bool(s.all()) for s in seen.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_one_layout_wrote_another_reads(tmp_path: Path, dtype: torch.dtype) -> None:
    values = {name: t.to(dtype) for name, t in wholes(SPEC).items()}
    before = Layout(data_parallel=2, pipeline_parallel=2, tensor_parallel=1)
    ranks = (0, 1, 2, 3)
    for rank in ranks:
        mine = written_by(rank, SPEC, ranks, before)
        shards = [
            Shard(n, values[n].shape, s, values[n][s].clone()) for n, parts in mine.items() for s in parts
        ]
        piece = write_pieces(tmp_path / f"{rank}", [(weights_of(7), s) for s in shards])
        assert piece.bytes == (tmp_path / f"{rank}").stat().st_size
    written = sum((tmp_path / f"{rank}").stat().st_size for rank in ranks)
    assert written < 1.3 * sum(t.nbytes for t in values.values())  # no slice twice
    pieces = Pieces(tmp_path / f"{rank}" for rank in ranks)
    after = Layout(data_parallel=1, pipeline_parallel=1, tensor_parallel=4)
    for index in range(4):
        for s in shard_map(SPEC, after, position_of(index, after)):
            read = pieces.canonical(weights_of(7))(s.name, s.global_shape)[s.slices]
            assert read.dtype == dtype
            assert torch.equal(read, values[s.name][s.slices])
    with pytest.raises(FileError, match=r"has not all of `weights.8` of tensor `model.norm.weight`"):
        pieces.read(weights_of(8), "model.norm.weight", (slice(0, 16),))
    (first, *_) = [rank for rank in ranks if "model.norm.weight" in written_by(rank, SPEC, ranks, before)]
    less = Pieces(tmp_path / f"{rank}" for rank in ranks if rank != first)
    with pytest.raises(FileError, match=r"has not all of `weights.7`"):
        less.read(weights_of(7), "model.norm.weight", (slice(0, 16),))


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    shard = Shard("model.norm.weight", (40000,), (slice(0, 40000),), torch.zeros(40000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_pieces(tmp_path / "piece", [("exp_avg", shard)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
