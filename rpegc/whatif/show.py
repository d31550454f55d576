"""Effects as a table to read and as a plot."""

from typing import Any

from passes.uncertainty import INDISTINGUISHABLE
from rpegc.figures import Figures
from rpegc.plots import write_plot
from rpegc.table import duration, indent, size, table
from rpegc.whatif.data import Effect, WhatIf

MARK, UNTOLD = "*", "~"


def render(found: WhatIf) -> str:
    """The base, then one line per change: its figures, its gain with the plan kept and with the best plan."""
    base = found.base
    lines = [
        f"{found.name}: {found.stage} {found.stage_id[:12]}",
        indent(
            f"{duration(base.step_time_s)} per step, {base.tokens_per_second:.5g} tokens/s "
            f"on {found.gpus} GPUs, {base.gpu_hours_per_million_tokens:.4g} GPU-hours per million tokens, "
            f"peak {size(base.peak_memory_bytes)} of {size(base.memory_limit_bytes)}{_misfit(base)}"
        ),
        "",
    ]
    header = ("change", "step", "tokens/s", "gain", "same plan", "GPU-h/Mtok", "peak", "how")
    rows = [_row(effect) for effect in found.effects]
    lines.append(table(header, rows, right=(1, 2, 3, 4, 5, 6)) if rows else "there is nothing to change")
    if any(effect.changes_training for effect in found.effects):
        lines += ["", f"{MARK} changes what is learned or from what, not only how fast"]
    if any(effect.indistinguishable for effect in found.effects):
        lines += ["", f"{UNTOLD} {INDISTINGUISHABLE}"]
    lines += [f"note: {note}" for effect in found.effects for note in effect.notes]
    lines += [f"left out: {text}" for text in found.left_out]
    return "\n".join(lines)


def _row(effect: Effect) -> tuple[str, ...]:
    name = effect.change + (f" {MARK}" if effect.changes_training else "")
    same, best = effect.same_plan, effect.best
    kept = "-" if same is None else _gain(effect.same_plan_gain_percent) + _misfit(same)
    if best is None:
        return name, "-", "-", "-", kept, "-", "-", "no plan"
    return (
        name,
        duration(best.step_time_s),
        f"{best.tokens_per_second:.5g}",
        f"{UNTOLD} " * bool(effect.indistinguishable) + _gain(effect.gain_percent),
        kept,
        f"{best.gpu_hours_per_million_tokens:.4g}",
        size(best.peak_memory_bytes),
        f"{effect.how}{_misfit(best)}",
    )


def _gain(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.1f} %"


def _misfit(figures: Figures) -> str:
    return "" if figures.fits else ", does not fit"


def plot(found: WhatIf, name: str) -> None:
    """Write bars of the gains, with the plan kept and with the best plan, to file `name`; plans that do not
    fit are hatched. Raises UsageFailure E936 and E912."""
    shown = [effect for effect in reversed(found.effects) if effect.best is not None]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for place, effect in enumerate(shown):
            for drawn, percent, height, colour in (
                (effect.best, effect.gain_percent, 0.8, "tab:blue"),
                (effect.same_plan, effect.same_plan_gain_percent, 0.35, "tab:orange"),
            ):
                if drawn is not None:
                    hatch = None if drawn.fits else "///"
                    axes.barh(place, percent, height, color=colour, hatch=hatch, alpha=0.8)
        names = [e.change + (f" {MARK}" if e.changes_training else "") for e in shown]
        axes.set_yticks(range(len(shown)), names, fontsize="small")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel("change in tokens/s [%]: best plan (blue), same plan (orange)")
        axes.set_title(f"{found.name}: {found.base.tokens_per_second:.5g} tokens/s, predicted")

    write_plot(name, draw, inches=(10.0, 1.5 + 0.3 * len(shown)))
