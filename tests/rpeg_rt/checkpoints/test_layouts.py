"""Checkpoints under data, pipeline and tensor parallelism: every rank reads its slices, and none is lost."""

import copy
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from ir_schema.problem import Layout
from rpeg_rt.checkpoints.directory import INDEX, lay_out_tensors, read_tensors
from rpeg_rt.checkpoints.export import new_checkpoint
from rpeg_rt.engine import Position, canonical_shapes, shard_map
from rpeg_rt.engine.engine import Engine
from rpeg_rt.weights import starting_weights, write_shards
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout

pytest.importorskip("transformers")
families = pytest.importorskip("tests.rpeg_rt.checkpoints.families")

LAYOUTS = {
    "tp2": layout(tensor=2),
    "pp2": layout(pipeline=2),
    "dp2": layout(data=2),
    "pp2 tp2": layout(pipeline=2, tensor=2),
    "tp4": layout(tensor=4),
}
# One of each trouble: biases, norms of heads, tied ends, fewer key/value heads than ranks, post norms.
CASES = [("qwen2", "tp2"), ("qwen2", "dp2"), ("qwen2", "pp2 tp2"), ("qwen3", "pp2"), ("llama", "tp4")]
CASES += [("gemma", "tp4"), ("gemma2", "tp2"), ("gemma3", "pp2 tp2")]


class Watched:
    """A tensor that counts the elements that are taken from it."""

    def __init__(self, tensor: torch.Tensor, count: Any) -> None:
        self._tensor, self.shape, self._count = tensor, tensor.shape, count

    def __getitem__(self, at: Any) -> torch.Tensor:
        part = self._tensor[at]
        self._count(part.numel())
        return part


@pytest.mark.parametrize(("case", "shape"), CASES, ids=lambda x: x)
def test_any_layout_scores_and_saves_what_one_process_read(case: str, shape: str, tmp_path: Path) -> None:
    spec, reference = families.saved(case, tmp_path / "theirs", max_shard_size="40KB")
    assert (tmp_path / "theirs" / INDEX).exists()
    spread = LAYOUTS[shape]
    generator = torch.Generator().manual_seed(5)
    rows = torch.randint(0, 61, (4, WORKLOAD.total_length), generator=generator, dtype=torch.int32)

    def check(rank: int) -> Any:
        groups = harness.groups_of(list(range(spread.gpus)), spread)
        engine = Engine(spec, groups, precision=torch.float32, workload=WORKLOAD)
        read: dict[str, int] = defaultdict(int)
        source = starting_weights(spec, "model", 0, str(tmp_path / "theirs"))

        def watched(name: str, full: tuple[int, ...]) -> Any:
            return Watched(source(name, full), lambda n: read.__setitem__(name, read[name] + n))

        engine.load(watched)
        held = sum(p.numel() for p in engine._model.parameters())
        context = new_checkpoint(tmp_path / "ours", spec, "float32", None, None)
        part = context.__enter__() if rank == 0 else tmp_path / ".ours.part"
        dist.barrier()
        if groups.place.data == 0:
            write_shards(engine.shards(), part)
        dist.barrier()
        if rank == 0:
            context.__exit__(None, None, None)
        return sum(read.values()), held, engine.score(rows, 1, "logp")

    results = harness.launch(spread.gpus, check)
    whole = sum(p.numel() for p in reference.parameters())
    for read, held, _ in results:
        assert read <= held
        if spread.data_parallel == 1:
            assert read < 0.8 * whole
    with torch.no_grad():
        logp = reference(rows.long()).logits.log_softmax(-1)[:, WORKLOAD.prompt_length - 1 : -1]
    expected = logp.gather(-1, rows[:, WORKLOAD.prompt_length :, None].long())[..., 0]
    torch.testing.assert_close(results[-1][2], expected, rtol=0, atol=1e-4)
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    theirs: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "theirs").glob("*.safetensors"):
        theirs |= load_file(path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_files_are_of_limited_size(tmp_path: Path) -> None:
    spec = harness.spec()
    shapes = canonical_shapes(spec)
    lay_out_tensors(tmp_path, shapes, "bfloat16", shard_bytes=10_000)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 2
    for path in files:
        tensors = load_file(path)
        size = sum(t.nbytes for t in tensors.values())
        assert size <= 10_000 or len(tensors) == 1
    found = read_tensors(tmp_path)
    assert {name: t.shape for name, t in found.items()} == shapes
    assert {t.dtype for t in found.values()} == {"BF16"}


def test_bfloat16_stays_bit_for_bit(tmp_path: Path) -> None:
    spec, model = families.saved("qwen2", tmp_path / "single")
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path / "theirs")

    def check(_: int) -> None:
        groups = harness.groups_of([0], layout())
        engine = Engine(spec, groups, precision=torch.bfloat16, workload=WORKLOAD)
        engine.load(starting_weights(spec, "model", 0, str(tmp_path / "theirs")))
        with new_checkpoint(tmp_path / "ours", spec, "bfloat16", None, None) as part:
            write_shards(engine.shards(), part)

    harness.launch(1, check)
    theirs, ours = (load_file(tmp_path / x / "model.safetensors") for x in ("theirs", "ours"))
    assert {t.dtype for t in ours.values()} == {torch.bfloat16}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[n].view(torch.int16), t.view(torch.int16)) for n, t in theirs.items())


@pytest.mark.parametrize("spread", LAYOUTS.values(), ids=LAYOUTS)
def test_shards_of_norms_that_only_some_families_have_cover_them(spread: Layout) -> None:
    spec = harness.spec(post_norms=True, qk_norm=True)
    names = {
        shard.name
        for i in range(spread.pipeline_parallel)
        for shard in shard_map(spec, spread, Position(data=0, pipeline=i, context=0, tensor=0))
    }
    assert {n for n in canonical_shapes(spec) if "norm" in n} <= names
