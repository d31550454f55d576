"""Passes by name, found through the entry-point group `rpegc.passes`, the built-in ones like a plugin's.

Listing names reads package metadata only; the code of a pass is imported when it is asked for.
"""

import dataclasses
from importlib import metadata
from typing import Any

from passes.base import Pass
from rpegc.failure import UsageFailure, suggestion, usage_error

PASSES = "rpegc.passes"

AnyPass = Pass[Any, Any]


def distribution(entry: metadata.EntryPoint) -> str:
    """Name and version of the distribution that registered `entry`."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


def registered(group: str = PASSES) -> dict[str, metadata.EntryPoint]:
    """All entry points of `group` by name.

    Raises UsageFailure E925 when two distributions register the same name, naming both.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other is not entry:
            raise usage_error(
                "E925",
                f"`{entry.name}` is registered twice in `{group}`: "
                f"by {distribution(other)} and by {distribution(entry)}",
                help="uninstall one of them",
            )
    return found


def load_pass(name: str) -> type[AnyPass]:
    """The pass class called `name`.

    Raises UsageFailure E921 (no such pass), E925 (registered twice) or E926 (it cannot be loaded).
    """
    entries = registered()
    if name not in entries:
        raise usage_error("E921", f"unknown pass `{name}`", help=suggestion(name, entries))
    entry = entries[name]
    try:
        loaded = entry.load()
    except Exception as exc:
        raise _broken(entry, f"{type(exc).__name__}: {exc}") from exc
    if not (isinstance(loaded, type) and issubclass(loaded, Pass) and dataclasses.is_dataclass(loaded)):
        raise _broken(entry, f"`{entry.value}` is not a dataclass derived from `passes.base.Pass`")
    if loaded.name != name:
        raise _broken(entry, f"`{entry.value}` calls itself `{loaded.name}`")
    return loaded


def _broken(entry: metadata.EntryPoint, reason: str) -> UsageFailure:
    return usage_error(
        "E926", f"cannot load pass `{entry.name}` registered by {distribution(entry)}", notes=[reason]
    )
