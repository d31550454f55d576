"""A plot for every fit of a calibration."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rpegc.calibration.parts import Curve
from rpegc.plots import check_plot, write_plot
from rpegc.stagefiles import make_directory


def check_pictures(directory: str) -> None:
    """Make the directory. Raises UsageFailure where plots cannot be drawn or written there."""
    make_directory(Path(directory))
    check_plot(str(Path(directory) / "fit.png"))


def draw(directory: str, curves: Sequence[Curve]) -> None:
    """Write NAME.png for every fit."""
    for curve in curves:
        write_plot(str(Path(directory) / f"{curve.name}.png"), partial(_one, curve))


def _one(curve: Curve, figure: Any) -> None:
    axes = figure.add_subplot()
    if curve.axis == "measured":
        both = np.concatenate([curve.measured, curve.fitted])
        axes.plot([both.min(), both.max()], [both.min(), both.max()], color="0.6", label="equal")
        axes.plot(curve.measured, curve.fitted, "o", label="operators")
        axes.set_xlabel("measured [s]")
        axes.set_ylabel("fitted [s]")
    else:
        order = np.argsort(curve.size)
        axes.plot(curve.size[order], curve.measured[order], "o", label="measured (median)")
        axes.plot(curve.size[order], curve.fitted[order], label="fitted")
        axes.set_xlabel(curve.axis)
        axes.set_ylabel("time [s]")
    axes.set_xscale("log")
    axes.set_yscale("log")
    off = float(np.mean(np.abs(curve.fitted / curve.measured - 1)))
    axes.set_title(f"{curve.name}: off by {100 * off:.1f} % on average")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
