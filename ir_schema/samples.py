"""Sample files: what `rpeg-rt bench` measured on a machine, for `rpeg-calib` to fit and to compare with.

A sample says what was done and how long each repetition of it took, in seconds; nothing is averaged away.
All workers that take part start a repetition together, and its time is that of the slowest of them.
"""

from typing import Literal

import msgspec

from ir_schema.base import Record, Role, Tier
from ir_schema.model import ModelSpec
from ir_schema.problem import Layout, Placement, Workload

VERSION = 1

Primitive = Literal["all_reduce", "all_gather", "reduce_scatter", "point_to_point"]


class SamplesError(ValueError):
    """A file is not a sample file of this version; the text says what is wrong."""


class Environment(Record, frozen=True, kw_only=True):
    """Where and when samples were taken, and with what.

    `machines` are the hosts by node, `processor` and `accelerator` what they compute with (None: no GPU),
    `processors` those that one node may use; `workers` is how many each node had, and `threads` how many each
    of them computes with. `load` is how many processes the first node was running just before (None: the
    system does not say): on a machine that others use, samples are of what they leave. `started` is a date
    in ISO 8601.
    """

    started: str
    machines: tuple[str, ...]
    processor: str
    processors: int
    accelerator: str | None
    backend: str
    launcher: str
    workers: tuple[int, ...]
    threads: int
    load: float | None
    software: dict[str, str]


class Memory(Record, frozen=True, kw_only=True):
    """Bytes of one GPU, or on CPU of one worker's equal part of its node, and what a worker's process
    occupies of them before it has made any model: context, libraries, communication."""

    total_bytes: int
    idle_bytes: int


class ProductSample(Record, frozen=True, kw_only=True):
    """A matrix product [rows, inner] times [inner, columns] of elements of `width` bytes, by `workers` of one
    node at once."""

    rows: int
    columns: int
    inner: int
    width: int
    workers: int
    seconds: tuple[float, ...]


class CopySample(Record, frozen=True, kw_only=True):
    """A contiguous copy in a worker's memory, by `workers` of one node at once; `nbytes` counts what is read
    and what is written."""

    nbytes: int
    workers: int
    seconds: tuple[float, ...]


class LayerSample(Record, frozen=True, kw_only=True):
    """What a layer does besides matrix products and attention, and does alike on all tensor ranks: its norms
    and residual sums, of `hidden` elements of `width` bytes for each of `sequences` times `tokens` tokens."""

    hidden: int
    width: int
    sequences: int
    tokens: int
    workers: int
    seconds: tuple[float, ...]


class TransferSample(Record, frozen=True, kw_only=True):
    """A communication among `participants` workers that span `tier`, of which each node has `per_node`.

    `nbytes` is M of the cost tables: the buffer of an all-reduce, the gathered one, the input of a
    reduce-scatter, the payload of a message.
    """

    primitive: Primitive
    tier: Tier
    participants: int
    per_node: int
    nbytes: int
    seconds: tuple[float, ...]


class OperatorCase(Record, frozen=True, kw_only=True):
    """One operator: a model in one role and placement over the sequences of a workload.

    All responses have the lengths of the workload's quantile function.
    """

    role: Role
    model: ModelSpec
    workload: Workload
    placement: Placement


class OperatorSample(Record, frozen=True, kw_only=True):
    """An operator run by the runtime's own engine on the placement's workers.

    `busy_seconds` are processor seconds of all of them together, by repetition: on a machine that others use
    they say more than `seconds`. `tensor_bytes` is the most that live tensors occupied on the fullest worker
    while the operator ran, weights and state included, above what there was before the model was made;
    `process_bytes` the most that a worker's process occupied of its GPU or, on CPU, of memory (None: the
    system does not say).
    """

    case: OperatorCase
    seconds: tuple[float, ...]
    busy_seconds: tuple[float, ...]
    tensor_bytes: int
    process_bytes: int | None


class Samples(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One sample file. `dispatch_seconds` is how long the controller waits for a worker that it asks for
    nothing: what a node of a plan takes beside its work."""

    version: int
    environment: Environment
    memory: Memory | None = None
    dispatch_seconds: tuple[float, ...] = ()
    products: tuple[ProductSample, ...] = ()
    copies: tuple[CopySample, ...] = ()
    layers: tuple[LayerSample, ...] = ()
    transfers: tuple[TransferSample, ...] = ()
    operators: tuple[OperatorSample, ...] = ()


class Grid(Record, frozen=True, kw_only=True):
    """Operators to measure: every role of every model, in every layout and number of microbatches, on every
    workload; and single `cases`."""

    models: dict[str, ModelSpec] = {}
    roles: tuple[Role, ...] = ("generation", "inference", "training")
    workloads: tuple[Workload, ...] = ()
    layouts: tuple[Layout, ...] = ()
    microbatches: tuple[int, ...] = (1,)
    cases: tuple[OperatorCase, ...] = ()


def encode_samples(samples: Samples) -> bytes:
    """The file of `samples`, JSON."""
    return msgspec.json.format(msgspec.json.encode(samples, order="deterministic"), indent=1) + b"\n"


def decode_samples(data: bytes) -> Samples:
    """The samples in a file. Raises SamplesError."""
    try:
        found = msgspec.json.decode(data, type=Samples)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SamplesError(f"not a sample file: {exc}") from exc
    if found.version != VERSION:
        raise SamplesError(f"a sample file of version {found.version}; this reads version {VERSION}")
    return found
