"""What a shell can complete besides commands, options and files: names that are known at run time.

Each function is a click `shell_complete` callback. What it needs is imported when the shell asks, and
nothing that is broken (a plugin, say) may end in a traceback at the user's prompt: names are only listed.
"""

from collections.abc import Callable, Iterable

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _registered(group: str) -> list[str]:
    from importlib import metadata

    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def _passes() -> list[str]:
    return _registered("rpegc.passes")


def _cost_models() -> list[str]:
    return _registered("rpegc.cost_models")


def _stages() -> Iterable[str]:
    from ir_schema.envelope import STAGES

    return STAGES


def _codes() -> Iterable[str]:
    from rpegc.diagnostics.catalogue import read_catalogue

    return read_catalogue()


def _models() -> Iterable[str]:
    from rpegc.models import model_names

    return model_names()


def _peers() -> Iterable[str]:
    from passes.search.restriction import PEERS

    return PEERS


def _starting(names: Callable[[], Iterable[str]], also: tuple[str, ...] = ()) -> Complete:
    """The callback that offers those of `names` that start with what was typed."""
    return lambda ctx, param, typed: [n for n in (*also, *names()) if n.startswith(typed)]


def pipeline(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """The pipeline typed so far with its last pass completed."""
    before, comma, last = typed.rpartition(",")
    return [f"{before}{comma}{name}" for name in _passes() if name.startswith(last)]


pass_names = _starting(_passes)
pass_names_or_all = _starting(_passes, also=("all",))
cost_models = _starting(_cost_models)
stages = _starting(_stages)
codes = _starting(_codes)
models = _starting(_models)
peers = _starting(_peers)
