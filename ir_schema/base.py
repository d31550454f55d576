"""The base of every type that is written to disk, and the vocabulary of literal values.

All types here are immutable and refuse unknown fields, so that a misspelt key in a file is an error
instead of a silently ignored wish.
"""

from typing import Literal

import msgspec

Role = Literal["generation", "inference", "training"]
Head = Literal["lm", "scalar", "both"]
Tier = Literal["intra", "inter", "rack"]
Split = Literal["auto", "never"]
Objective = Literal["throughput", "efficiency"]
NodeKind = Literal["Op", "Comm", "Reshard"]

TIERS: tuple[Tier, ...] = ("intra", "inter", "rack")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable record that is encoded with its fields in declaration order."""
