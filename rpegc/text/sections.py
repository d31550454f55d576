"""What the statements of a file have in common: blocks that stand once, named things, resolved names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ir_schema.base import Head, Record
from ir_schema.device import DeviceSpace
from ir_schema.diagnostics import Diagnostic, DiagnosticError, Label
from ir_schema.hardware import Hardware
from ir_schema.model import ModelSpec
from ir_schema.problem import Options, Problem
from rpegc.diagnostics.source import locate
from rpegc.text import tree
from rpegc.text.convert import Converter, Rejected, missing_keys
from rpegc.text.findings import finding
from rpegc.text.grammar import SHAPES

R = TypeVar("R", bound=Record)
T = TypeVar("T")

NOTHING = tree.Block(())
_CLUSTER = {"hardware": str | Hardware, "racks": int, "nodes": int, "gpus": int}


@dataclass(frozen=True)
class Resolver:
    """What elaboration asks of the rest of the compiler.

    `model` finds an architecture by shipped name or path, `hardware` a machine likewise, `parameters`
    counts N_m of a model of a problem under its cost model. All raise DiagnosticError.
    """

    model: Callable[[str, Head], ModelSpec]
    hardware: Callable[[str], Hardware]
    parameters: Callable[[Problem, str], int]


class Sections(Converter):
    """Converts the statements of `file`, grouped by keyword; `options` override those of the file."""

    def __init__(self, file: tree.File, resolver: Resolver, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.file = file
        self.resolver = resolver
        self.overrides = options
        self.by_keyword: dict[str, list[tree.Statement]] = {k: [] for k in SHAPES}
        for statement in file.statements:
            self.by_keyword[statement.keyword].append(statement)
        for keyword, statements in self.by_keyword.items():
            if SHAPES[keyword].once:
                for again in statements[1:]:
                    also = (Label(span=statements[0].span, text="first given here"),)
                    self.problems.append(
                        finding("E013", f"`{keyword}` is given twice", again.span, also=also)
                    )

    def pinned(self) -> list[Diagnostic]:
        """The findings with spans in place of paths: there will be no problem for the paths to lead into."""
        result = []
        for found in self.problems:
            spans = (label.span or locate(label.path, self.source_map) for label in found.labels)
            labels = zip(found.labels, spans, strict=True)
            pinned = tuple(msgspec.structs.replace(label, span=span) for label, span in labels)
            result.append(msgspec.structs.replace(found, labels=pinned))
        return result

    # blocks that stand once

    def only(self, keyword: str, kind: type[R], required: bool = True) -> R | None:
        """The record of a statement that stands once."""
        statements = self.by_keyword[keyword]
        if not statements:
            if required:
                self.lacks(keyword)
            return None
        try:
            return self.record(statements[0].body or NOTHING, kind, keyword, statements[0].span)
        except Rejected:
            return None

    def lacks(self, keyword: str) -> None:
        """Report a statement that every problem needs."""
        help = f"for example `{SHAPES[keyword].example}`"
        self.problems.append(finding("E012", f"the graph has no `{keyword}`", self.file.name.span, help=help))

    def options(self) -> Options | None:
        """The options of the file with overrides."""
        if not self.by_keyword["options"]:
            written: Options | None = Options()
        else:
            written = self.only("options", Options)
        if written is None:
            return None
        return final_options(written, self.overrides, "options.cost_model" in self.source_map)

    def cluster(self) -> tuple[Hardware | None, DeviceSpace | None]:
        """The hardware and the device space."""
        if not self.by_keyword["cluster"]:
            self.lacks("cluster")
            return None, None
        statement = self.by_keyword["cluster"][0]
        self.source_map["device_space"] = self.source_map["cluster"] = statement.span
        values, _ = self.entries(statement.body or NOTHING, _CLUSTER, "cluster", "`cluster`")
        missing = missing_keys(statement.body or NOTHING, _CLUSTER, _CLUSTER)
        if missing:
            help = f"for example `{SHAPES['cluster'].example}`"
            self.problems.append(finding("E012", f"`cluster` lacks {missing}", statement.span, help=help))
        self.alias("cluster.hardware", "hardware")
        for i, axis in enumerate(("racks", "nodes", "gpus")):
            self.alias(f"cluster.{axis}", f"device_space[{i}]")
        sizes = [values[axis] for axis in ("racks", "nodes", "gpus") if axis in values]
        hardware = values.get("hardware")
        if isinstance(hardware, str):
            name = hardware
            hardware = self.resolved("hardware", lambda: self.resolver.hardware(name))
        return hardware, (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 else None

    def alias(self, path: str, other: str) -> None:
        """Enter what stands at and below `path` under the path `other` as well."""
        for known, span in list(self.source_map.items()):
            rest = known.removeprefix(path)
            if known.startswith(path) and rest[:1] in ("", ".", "["):
                self.source_map[other + rest] = span

    def resolved(self, path: str, ask: Callable[[], T]) -> T | None:
        """What the resolver answers. None after its findings were noted, at `path` if they stand nowhere."""
        try:
            return ask()
        except DiagnosticError as exc:
            for found in exc.diagnostics:
                labels = found.labels or (Label(),)
                if locate(labels[0].path, self.source_map) is None:
                    labels = (msgspec.structs.replace(labels[0], path=path), *labels[1:])
                placed = msgspec.structs.replace(found, labels=labels)
                if placed not in self.problems:
                    self.problems.append(placed)
            return None

    # named things

    def named(self, keyword: str, kind: type[R]) -> Iterator[tuple[str, R]]:
        """(name, record) of each valid statement of a keyword; the second of one name is reported."""
        for statement in self.unique(keyword):
            name, path = statement.words[0].text, f"{keyword}.{statement.words[0].text}"
            try:
                what = f"`{keyword} {name}`"
                yield name, self.record(statement.body or NOTHING, kind, path, statement.words[0].span, what)
            except Rejected:
                continue

    def unique(self, keyword: str) -> list[tree.Statement]:
        """The statements of a keyword that gives each name once."""
        seen: dict[str, tree.Statement] = {}
        for statement in self.by_keyword[keyword]:
            first = seen.setdefault(statement.words[0].text, statement)
            if first is not statement:
                also = (Label(span=first.span, text="first given here"),)
                message = f"`{keyword} {statement.words[0].text}` is given twice"
                self.problems.append(finding("E013", message, statement.span, also=also))
        return list(seen.values())


def final_options(written: Options, overrides: Mapping[str, Any], named: bool) -> Options:
    """The options of a file with `overrides`; `named` says whether the file names a cost model.

    The printed form means the printed cost model, unless whoever asks for that form names another.
    """
    options = msgspec.structs.replace(written, **overrides)
    asked = bool(overrides.get("as_printed"))
    if "cost_model" not in overrides and options.as_printed and (asked or not named):
        return msgspec.structs.replace(options, cost_model="paper")
    return options
