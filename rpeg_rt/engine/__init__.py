"""The execution engine: one model in one layout on this worker, built from Megatron-Core blocks.

`Engine` (in `rpeg_rt.engine.engine`) builds the local shard of a model, scores, generates and trains.
This package's own namespace holds only what needs neither torch nor Megatron, so that a controller or
a preflight check can ask what is supported, which rank holds what and which fragments have to move:

    unsupported(spec, layout, workload)   what the engine cannot execute, as sentences
    canonical_shapes(spec)                names and full shapes of a model's tensors
    shard_map(spec, layout, position)     what one rank of a layout holds
    route(spec, source, destination)      the fragments that carry weights between two layouts

Modules that import torch: `groups` (process groups), `engine`, `model`, `generation`, `training`,
`transfer`. Importing any of them installs the CPU shim where there is no GPU.

Invariants:
* every tensor of a model has one canonical name and full shape (those of Hugging Face);
  ranks hold slices of canonical tensors and nothing else, so weights can move between any two layouts;
* what is computed does not depend on layout, microbatches or batch composition, up to the order of
  floating-point sums: sequences are left-aligned, so a token's position is its index in its sequence.
"""

from rpeg_rt.engine.architecture import UnsupportedModelError, canonical_shapes, unsupported
from rpeg_rt.engine.routing import Fragment, route
from rpeg_rt.engine.sharding import Position, ShardSpec, position_of, reverse_stages, shard_map

__all__ = [
    "Fragment",
    "Position",
    "ShardSpec",
    "UnsupportedModelError",
    "canonical_shapes",
    "position_of",
    "reverse_stages",
    "route",
    "shard_map",
    "unsupported",
]
