"""A comparison as text to read and as CSV."""

from passes.uncertainty import INDISTINGUISHABLE
from rpegc.compare.data import Comparison, Entry
from rpegc.figures import FIGURES
from rpegc.table import csv_bytes, duration, indent, rate, size, table

REASONS = {"infeasible": "nothing fits in memory", "not allowed": "not allowed by this file"}
"""What is said of a space without a plan."""

HEADER = ("system", "step", "tokens/s", "rpeg gains", "util.", "peak", "gap", "evaluations", "structure")
MARK = "~"
FIELDS = ("rpeg_gain", "indistinguishable", "structure", "evaluations", "termination", "reason")


def as_csv(found: Comparison) -> bytes:
    """One line for each decision space."""
    return csv_bytes(
        ("name", "outcome", *FIGURES, *FIELDS),
        [
            [
                entry.name,
                entry.outcome,
                *(getattr(entry.figures, name, None) for name in FIGURES),
                *(getattr(entry, name) for name in FIELDS),
            ]
            for entry in found.entries
        ],
    )


def as_text(found: Comparison) -> str:
    """What is compared and how, a line for each decision space, and what each of them is."""
    limits = [e.figures.memory_limit_bytes for e in found.entries if e.figures is not None]
    memory = f", {size(limits[0])} of memory each for the job" if limits else ""
    title = (
        f"{found.problem} on {machine(found)}{memory}: the best plan within what each system may decide",
        f"predictions of the one cost model `{found.cost_model}`, not measurements of these systems",
        effort(found),
    )
    rows = [_row(entry) for entry in found.entries]
    legend = [f"{MARK} {INDISTINGUISHABLE}"] if any(map(mark, found.entries)) else []
    summaries = table(("system", "what it may decide"), [(e.name, e.summary) for e in found.entries])
    plans = [table(HEADER, rows, right=range(1, 8)), *legend]
    return "\n\n".join(["\n".join(title), indent("\n".join(plans)), indent(summaries)])


def machine(found: Comparison) -> str:
    """How many GPUs there are."""
    return f"{found.gpus} GPU{'s' if found.gpus > 1 else ''}"


def effort(found: Comparison) -> str:
    """What every search might spend, and what that of rpeg profits from."""
    spent = [] if found.budget is None else [f"{found.budget} evaluations"]
    spent += [] if found.time_limit is None else [f"{duration(found.time_limit)}"]
    aim = f"for the best {found.objective}"
    text = f"every search {aim}: at most {' and '.join(spent)}, seed {found.seed}"
    if found.start_evaluations:
        text += (
            f"; rpeg starts from the plans of the others, which took {found.start_evaluations} evaluations"
        )
    return text


def gained(fraction: float) -> str:
    """A gain in percent."""
    return f"{100 * fraction:+.1f} %"


def mark(entry: Entry) -> str:
    """What stands before a gain that is within the uncertainty of the predictions."""
    return MARK if entry.indistinguishable else ""


def _row(entry: Entry) -> list[str]:
    f = entry.figures
    if f is None:
        why = "" if entry.outcome == "infeasible" else f"{REASONS[entry.outcome]}: "
        return [entry.name, *["-"] * 7, f"{why}{entry.reason}"]
    return [
        entry.name,
        duration(f.step_time_s),
        rate(f.tokens_per_second),
        "-" if entry.rpeg_gain is None else f"{mark(entry)}{gained(entry.rpeg_gain)}",
        f"{100 * f.utilization:.1f} %",
        size(f.peak_memory_bytes),
        "-" if f.optimality_gap is None else f"{100 * f.optimality_gap:.1f} %",
        str(entry.evaluations),
        str(entry.structure),
    ]
