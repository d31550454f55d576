"""The hardware file: what one machine kind can do, per GPU and per network tier."""

from typing import Literal

from ir_schema.base import Record, Tier

Measured = Literal["generation", "inference", "training", "transfers"]
"""What of a plan is measured as a whole: operators by role, and transfers between them."""


class AlphaBeta(Record, frozen=True, kw_only=True):
    """Latency `alpha` [s] and inverse bandwidth `beta` [s/B] of one transfer primitive."""

    alpha: float
    beta: float


class Tiers(Record, frozen=True, kw_only=True):
    """One transfer primitive at each tier: inside a node, between nodes of a rack, between racks."""

    intra: AlphaBeta
    inter: AlphaBeta
    rack: AlphaBeta

    def at(self, tier: Tier) -> AlphaBeta:
        """The parameters at `tier`."""
        if tier == "intra":
            return self.intra
        return self.inter if tier == "inter" else self.rack


class NonGemmReference(Record, frozen=True, kw_only=True):
    """The shape (B_cal sequences of l_cal tokens) at which `nongemm_seconds` was measured."""

    sequences: float
    tokens: float


class Dispatch(Record, frozen=True, kw_only=True):
    """What the framework takes to have one operation carried out [s], in a step of decoding, in a forward
    pass, and in training, where it records the operation and later runs it backward."""

    decoding: float
    forward: float
    training: float


class Provenance(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where the numbers come from. `nominal` stays true until somebody calibrates the machine.

    `sources` and `residuals` go by parameter (`peak_flops`, `collective.intra`): what a figure was taken
    from, and the mean relative error of the fit that it comes from. `spread` is how far predictions with all
    parameters together are off: the root mean square of ln(measured / predicted) of whole operators by role
    and of `transfers` between them, where they were measured. `limits` are the data sheet's: FLOP/s of
    `peak_flops`, bytes/s of `memory_bandwidth` and of tiers (`point_to_point.intra`). `models` identifies the
    models whose operators parameters were fitted to: a validation has to use others. `medians` are those of
    the samples [s], by what was done.
    """

    name: str
    nominal: bool = True
    sources: dict[str, str] = {}
    residuals: dict[str, float] = {}
    spread: dict[Measured, float] = {}
    limits: dict[str, float] = {}
    models: tuple[str, ...] = ()
    medians: dict[str, float] = {}
    notes: str = ""


class Hardware(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of one accelerator and its networks (`spec` names: F_peak, BW_mem, M_GPU, eps_rt, gamma_M,
    gamma_K, c_ng with its reference shape, alpha-beta pairs).

    Read by cost model `megatron` alone (`docs/cost-megatron.md`): `product_flops`, the rate that matrix
    products approach by themselves, where `peak_flops` is that of whole transformer layers; 0: what lies
    between products is part of `peak_flops`. `startup_seconds` is what a kernel takes beside its arithmetic
    and traffic, `kernel_seconds` the shortest time of a product with the small kernels and the launches
    around it, `launch_seconds` the same outside of generation, whose steps an engine captures and replays.
    `score_bytes` is what training and inference move per query-key pair and head; 0: scores stay on chip.
    With `dispatch`, operators are those of `rpeg-rt`'s own code, one operation after the other: none is
    captured or fused, and each result is held until the code lets go of it. With `node_processors`, the
    workers of a node compute with so many processors that they share, which also dispatch; 0: each GPU
    computes by itself, and dispatch runs ahead of it. All that one of them does takes longer by `contention`
    for every other that works at the same time, for they share caches and memory; a message keeps its
    worker's processor busy for `message_work` of the time that it takes. `wakeup_seconds` is what a message
    takes longer among workers that compute than in a sweep, where they do nothing but wait for it.

    Inter-node figures of collectives are those of whole
    nodes, all network cards together; those of point-to-point transfers are one GPU's.
    `all_gather` and `reduce_scatter` default to the all-reduce parameters.
    """

    peak_flops: float
    memory_bandwidth: float
    memory_bytes: float
    runtime_reserve: float = 0.1
    gamma_M: float
    gamma_K: float
    nongemm_seconds: float
    nongemm_reference: NonGemmReference
    collective: Tiers
    point_to_point: Tiers
    all_gather: Tiers | None = None
    reduce_scatter: Tiers | None = None
    kernel_seconds: float = 0.0
    product_flops: float = 0.0
    startup_seconds: float = 0.0
    launch_seconds: float = 0.0
    score_bytes: float = 0.0
    dispatch: Dispatch | None = None
    node_processors: float = 0.0
    contention: float = 0.0
    message_work: float = 0.0
    wakeup_seconds: float = 0.0
    provenance: Provenance | None = None
