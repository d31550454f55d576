"""Which slices of which canonical tensors a rank of a layout holds.

Pure: the same map tells the engine where its parameters come from and both sides of a transfer what to
move. A rank's position in a layout is that of the cost model: tensor index fastest, then context, pipeline
stage and replica, so that a replica's ranks are neighbours (semantics: P6 and P8). Ranks that differ in
their context index alone hold the same weights.

Invariant: two shards of one canonical tensor, of whatever ranks of one layout, are equal or disjoint,
and the distinct ones cover the tensor.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout
from rpeg_rt.engine.architecture import canonical_shapes, norm_names

# The modules that hold the norms of `norm_names`, in its order.
_NORMS = ("pre_mlp_layernorm", "self_attn_bda.norm", "mlp_bda.norm")

Slices = tuple[slice, ...]


class Position(NamedTuple):
    """A rank's coordinates in a layout."""

    data: int
    pipeline: int
    context: int
    tensor: int


class ShardSpec(NamedTuple):
    """A slice of a canonical tensor and where it is stored: rows or columns of a local parameter.

    `slices` cut the canonical tensor; `parameter` names the local parameter and `start` the first index
    along its `axis` at which the slice lies there.
    """

    name: str
    global_shape: tuple[int, ...]
    slices: Slices
    parameter: str
    axis: int
    start: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the slice."""
        return tuple(s.stop - s.start for s in self.slices)


def position_of(index: int, layout: Layout) -> Position:
    """Coordinates of the `index`-th rank of a layout's rank list."""
    rest, tensor = divmod(index, layout.tensor_parallel)
    rest, context = divmod(rest, layout.context_parallel)
    data, pipeline = divmod(rest, layout.pipeline_parallel)
    return Position(data, pipeline, context, tensor)


def expert_index(position: Position, layout: Layout) -> int:
    """Which part of the experts a rank holds: ranks of a stage take turns in the order of (data, context,
    tensor), so that neighbours have all of them."""
    place = position.data * layout.context_parallel + position.context
    return (place * layout.tensor_parallel + position.tensor) % layout.expert_parallel


def in_lockstep(layout: Layout) -> bool:
    """Whether ranks with different rows exchange tokens with each other, so that all of them have to make the
    same passes through the model, empty ones where they have no rows left. Such are ranks of different
    replicas and, while held-out prompts are answered, of one context-parallel group."""
    return layout.tensor_parallel % layout.expert_parallel > 0


def reverse_stages(ranks: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The ranks of a layout reordered so that its stage s lies where stage P_p - 1 - s lay."""
    stage = layout.tensor_parallel * layout.context_parallel
    replica = stage * layout.pipeline_parallel
    return tuple(
        rank
        for first in range(0, len(ranks), replica)
        for at in range(first + replica - stage, first - 1, -stage)
        for rank in ranks[at : at + stage]
    )


def shard_map(spec: ModelSpec, layout: Layout, position: Position) -> list[ShardSpec]:
    """All shards of the rank at `position`, in the order of the local parameters' use.

    Packed parameters are taken apart: the query/key/value projection is stored group by group as
    [query heads of the group, key head, value head] and cut into equal row ranges over tensor ranks,
    gate and up projections are stored one after the other. A rank's routed experts are stored one after the
    other too, each of them whole. Rows that pad the vocabulary have no shard.
    """
    return _ShardMap(spec, layout, position).shards


class _ShardMap:
    def __init__(self, spec: ModelSpec, layout: Layout, position: Position) -> None:
        self.shapes = canonical_shapes(spec)
        self.shards: list[ShardSpec] = []
        self.spec, self.degree, self.rank = spec, layout.tensor_parallel, position.tensor
        self.expert_degree, self.expert_rank = layout.expert_parallel, expert_index(position, layout)
        stages = layout.pipeline_parallel
        first, last = position.pipeline == 0, position.pipeline == stages - 1
        if first:
            self._vocabulary("model.embed_tokens.weight", "embedding.weight")
        per_stage = spec.layers // stages
        for local in range(per_stage):
            self._layer(position.pipeline * per_stage + local, local)
        if not last:
            return
        self._whole("model.norm.weight", "decoder.final_layernorm.weight")
        if spec.has_lm_head and not spec.tied_embeddings:
            self._vocabulary("lm_head.weight", "lm_head.weight")
        elif spec.has_lm_head and not first:
            self._vocabulary("model.embed_tokens.weight", "lm_head.weight")
        if spec.has_scalar_head:
            self._whole("value_head.weight", "value_head.weight")

    def _layer(self, layer: int, local: int) -> None:
        canonical, here = f"model.layers.{layer}.", f"decoder.layers.{local}."
        attention, stored = canonical + "self_attn.", here + "self_attention."
        self._whole(canonical + "input_layernorm.weight", here + "input_layernorm.weight")
        self._packed_qkv(attention, stored + "linear_qkv.", "weight")
        if self.spec.qkv_bias:
            self._packed_qkv(attention, stored + "linear_qkv.", "bias")
        if self.spec.qk_norm:
            self._whole(attention + "q_norm.weight", stored + "q_layernorm.weight")
            self._whole(attention + "k_norm.weight", stored + "k_layernorm.weight")
        self._cut(attention + "o_proj.weight", stored + "linear_proj.weight", axis=1)
        for name, module in zip(norm_names(self.spec), _NORMS, strict=False):
            self._whole(f"{canonical}{name}.weight", f"{here}{module}.weight")
        if self.spec.has_experts(layer):
            self._experts(canonical + "mlp.", here + "mlp.")
        else:
            self._gated(canonical + "mlp.", here + "mlp.linear_fc1.weight", here + "mlp.linear_fc2.weight")

    def _gated(self, canonical: str, inner: str, outer: str) -> None:
        """A gated feed-forward part, cut over tensor ranks."""
        width = self.shapes[canonical + "up_proj.weight"][0] // self.degree
        self._cut(canonical + "gate_proj.weight", inner, axis=0)
        self._cut(canonical + "up_proj.weight", inner, axis=0, start=width)
        self._cut(canonical + "down_proj.weight", outer, axis=1)

    def _experts(self, canonical: str, here: str) -> None:
        experts = self.spec.experts
        assert experts is not None
        self._whole(canonical + "gate.weight", here + "router")
        count, width = experts.routed // self.expert_degree, experts.ffn
        for local in range(count):
            expert = f"{canonical}experts.{self.expert_rank * count + local}."
            for i, name in enumerate(("gate_proj.weight", "up_proj.weight")):
                self._whole(expert + name, here + "gate_up", (2 * local + i) * width)
            self._whole(expert + "down_proj.weight", here + "down", local * self.spec.hidden)
        if experts.shared_ffn:
            self._gated(canonical + "shared_expert.", here + "shared_gate_up", here + "shared_down")
        if experts.shared_gate:
            self._whole(canonical + "shared_expert_gate.weight", here + "shared_gate")

    def _add(self, name: str, axis: int, begin: int, end: int, parameter: str, start: int) -> None:
        shape = self.shapes[name]
        slices = tuple(slice(begin, end) if a == axis else slice(0, n) for a, n in enumerate(shape))
        self.shards.append(ShardSpec(name, shape, slices, parameter, axis, start))

    def _whole(self, name: str, parameter: str, start: int = 0) -> None:
        self._add(name, 0, 0, self.shapes[name][0], parameter, start)

    def _cut(self, name: str, parameter: str, axis: int, start: int = 0) -> None:
        size = self.shapes[name][axis] // self.degree
        self._add(name, axis, self.rank * size, (self.rank + 1) * size, parameter, start)

    def _vocabulary(self, name: str, parameter: str) -> None:
        rows = padded_vocabulary(self.spec.vocabulary, self.degree) // self.degree
        begin, end = self.rank * rows, min((self.rank + 1) * rows, self.spec.vocabulary)
        if begin < end:
            self._add(name, 0, begin, end, parameter, 0)

    def _packed_qkv(self, attention: str, packed: str, kind: str) -> None:
        spec, width = self.spec, self.spec.head_width
        query = spec.attention_heads // spec.query_groups * width
        rows = (spec.attention_heads + 2 * spec.query_groups) * width // self.degree
        low, high = self.rank * rows, (self.rank + 1) * rows
        offset = 0
        for group in range(spec.query_groups):
            for letter, size in (("q", query), ("k", width), ("v", width)):
                begin, end = max(low, offset), min(high, offset + size)
                if begin < end:
                    origin = group * size - offset
                    name = f"{attention}{letter}_proj.{kind}"
                    self._add(name, 0, begin + origin, end + origin, packed + kind, begin - low)
                offset += size
