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
    gate and up projections are stored one after the other. Rows that pad the vocabulary have no shard.
    """
    return _ShardMap(spec, layout, position).shards


class _ShardMap:
    def __init__(self, spec: ModelSpec, layout: Layout, position: Position) -> None:
        self.shapes = canonical_shapes(spec)
        self.shards: list[ShardSpec] = []
        self.spec, self.degree, self.rank = spec, layout.tensor_parallel, position.tensor
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
        self._cut(canonical + "mlp.gate_proj.weight", here + "mlp.linear_fc1.weight", axis=0)
        width = self.spec.ffn // self.degree
        self._cut(canonical + "mlp.up_proj.weight", here + "mlp.linear_fc1.weight", axis=0, start=width)
        self._cut(canonical + "mlp.down_proj.weight", here + "mlp.linear_fc2.weight", axis=1)

    def _add(self, name: str, axis: int, begin: int, end: int, parameter: str, start: int) -> None:
        shape = self.shapes[name]
        slices = tuple(slice(begin, end) if a == axis else slice(0, n) for a, n in enumerate(shape))
        self.shards.append(ShardSpec(name, shape, slices, parameter, axis, start))

    def _whole(self, name: str, parameter: str) -> None:
        self._add(name, 0, 0, self.shapes[name][0], parameter, 0)

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
