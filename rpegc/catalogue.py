"""The passes as a user reads about them: what each does, its stages, its options."""

import dataclasses
import inspect

from ir_schema.envelope import STAGES
from rpegc.failure import UsageFailure
from rpegc.pipeline import NAMED, option_types, print_value, stage_of, type_text
from rpegc.registry import distribution, load_pass, registered
from rpegc.table import indent, table


def list_passes() -> str:
    """All registered passes in the order of their stages, and the named pipelines."""
    named = [(f"-{name}", text) for name, text in NAMED.items()]
    rows = [row for _, row in sorted(_row(name) for name in registered())]
    return "\n".join([table(("pass", "stages", "does"), rows), "", table(("level", "pipeline"), named)])


def _row(name: str) -> tuple[list[int], tuple[str, str, str]]:
    """A pass's place in the order of stages, and what is said about it."""
    try:
        kind = load_pass(name)
    except UsageFailure as exc:
        found = exc.diagnostics[0]
        return [len(STAGES)], (name, "?", "; ".join([found.message, *found.notes]))
    stages = [stage_of(kind.source), stage_of(kind.target)]
    order = [list(STAGES).index(s) if s in STAGES else len(STAGES) for s in stages]
    return order, (name, " -> ".join(stages), kind.summary)


def show_pass(name: str) -> str:
    """One pass: its documentation and every option with type and default."""
    kind = load_pass(name)
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    rows = [
        (
            option,
            type_text(hint),
            "" if defaults[option] is dataclasses.MISSING else print_value(defaults[option]),
        )
        for option, hint in option_types(kind).items()
    ]
    parts = [
        f"{name}: {kind.summary}",
        f"{stage_of(kind.source)} -> {stage_of(kind.target)}, from {distribution(registered()[name])}",
        inspect.getdoc(kind) or "",
    ]
    if rows:
        parts.append(f"options\n{indent(table(('name', 'type', 'default'), rows))}")
    return "\n\n".join(parts)
