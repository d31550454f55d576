"""The options of every command that searches: how, and for how long."""

import functools
import re
from collections.abc import Callable
from typing import Any

import click

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
LARGEST = 2**53


def budget_of(ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, object]:
    """The search's options that a budget means: `{"budget": 20000}` for `20000`, `{"budget": None,
    "time_limit": 90.0}` for `90s`, nothing for None. A click callback."""
    if text is None:
        return {}
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)(s|min|h)", text, re.ASCII)
    amount = float(match[1] or match[2]) if match else 0.0
    if match is None or not 0 < amount <= LARGEST:
        raise click.BadParameter(
            f"{text!r} is neither a number of evaluations (20000) nor a time (90s, 10min, 1h)"
        )
    return {"budget": None, "time_limit": amount * UNITS[match[3]]} if match[3] else {"budget": int(text)}


def budget_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds `--budget`, `--time-limit` and `--seed`: what was said of them is handed over as `search`, the
    options of the pass `search` that it replaces."""

    @functools.wraps(command)
    def collect(
        *args: Any, budget: dict[str, object], time_limit: float | None, seed: int | None, **rest: Any
    ) -> int:
        search = {"time_limit": time_limit, "seed": seed}
        said = {name: value for name, value in search.items() if value is not None}
        if budget.keys() & said.keys():
            raise click.UsageError("`--time-limit` and the time of `--budget` are the same: give one")
        return command(*args, search={**said, **budget}, **rest)

    return _with_options(
        collect,
        click.option("--seed", type=click.IntRange(min=0), help="Seed of the search."),
        click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
                     help="An extra cap on the search; results may then differ between runs."),
        click.option("--budget", callback=budget_of, metavar="N|TIME",
                     help="Evaluations of the search (heuristics are always scored), or its time: `90s`."),
    )  # fmt: skip


def search_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds `--search` and `--threads` to what `budget_options` adds and hands over."""

    @functools.wraps(command)
    def collect(
        *args: Any, search: dict[str, object], method: str | None, threads: int | None, **rest: Any
    ) -> int:
        more = {"method": method, "threads": threads}
        said = {name: value for name, value in more.items() if value is not None}
        return command(*args, search={**said, **search}, **rest)

    return _with_options(
        budget_options(collect),
        click.option("--threads", type=click.IntRange(min=1), metavar="N",
                     help="Threads of the search (default: all cores); any number gives the same plan."),
        click.option("--search", "method",
                     type=click.Choice(["auto", "sa", "greedy", "concurrent", "none"]),
                     help="auto: the best method (default); sa: simulated annealing; greedy, concurrent: "
                          "heuristics; none: the plan in the file."),
    )  # fmt: skip


def _with_options(
    command: Callable[..., int], *options: Callable[[Callable[..., int]], Callable[..., int]]
) -> Callable[..., int]:
    """`command` with `options`; the help shows the last one first."""
    return functools.reduce(lambda made, option: option(made), options, command)
