"""What the cost model predicts of a plan, as every comparison of plans tells it."""

from ir_schema.base import Record
from ir_schema.stages import Score, SearchReport


class Figures(Record, frozen=True, kw_only=True):
    """What the cost model predicts of a plan, named and measured as by `rpegc --json`.

    GPU-hours count every GPU of the cluster. `optimality_gap` is None where the search has proven no bound;
    `fits` says whether the plan fits in memory, which one taken from the file need not.
    """

    tokens_per_second: float
    tokens_per_second_per_gpu: float
    step_time_s: float
    gpu_hours_per_million_tokens: float
    utilization: float
    peak_memory_bytes: int
    memory_limit_bytes: int
    optimality_gap: float | None
    fits: bool


FIGURES = Figures.__struct_fields__


def figures_of(score: Score, report: SearchReport | None) -> Figures:
    """The figures of a plan with this score that was found in this way (None: by no search)."""
    million_tokens = score.tokens_per_s * score.step_time_s / 1e6
    return Figures(
        tokens_per_second=score.tokens_per_s,
        tokens_per_second_per_gpu=score.tokens_per_s_per_gpu,
        step_time_s=score.step_time_s,
        gpu_hours_per_million_tokens=score.gpu_hours_per_step / million_tokens,
        utilization=score.utilisation,
        peak_memory_bytes=score.max_peak_bytes,
        memory_limit_bytes=score.memory_limit_bytes,
        optimality_gap=None if report is None else report.optimality_gap,
        fits=score.memory_feasible,
    )
