"""Pipelines as text: `verify,search{budget=2000},unroll,lower,cost,schedule,assemble`.

    pipeline = pass { "," pass }
    pass     = name [ "{" [ option { "," option } ] "}" ]
    option   = name "=" value
    value    = word | JSON string

A pass's options are its dataclass fields and typed by them; `none` is the value of an empty optional
field. Printing leaves out options that have their default value, and parse(print(p)) = p. The stage
types of neighbours are checked before anything runs. All errors carry a span into the text.
"""

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable

from ir_schema.diagnostics import Span
from ir_schema.envelope import STAGES
from rpegc.failure import UsageFailure, suggestion, usage_error, usage_error_at
from rpegc.registry import AnyPass, load_pass

WORD = re.compile(r"[A-Za-z0-9_.+:/-]+")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
SPACE = re.compile(r"\s*")

Load = Callable[[str], type[AnyPass]]

# Every level is the same chain and differs in the search's effort alone, counted in evaluations so that a
# result repeats on any machine:
#   verify    first, so that everything behind it may rely on a well-formed graph and on a legal partial plan;
#   search    before unroll, because it chooses the plan for one step's graph and scores candidates by calling
#             the passes behind it as its evaluator;
#   unroll    before lower, because versions and transfers are between steps;
#   lower     before cost, because only then every transfer is a node that takes time;
#   cost      before schedule, because ranks are sums of durations;
#   assemble  last: it keeps one step of the scheduled graph as the template that the runtime repeats.
_CHAIN = "verify,search{{{search}}},unroll,lower,cost,schedule,assemble"
NAMED = {
    "O0": _CHAIN.format(search="method=greedy"),
    "O1": _CHAIN.format(search="method=concurrent"),
    "O2": _CHAIN.format(search="method=auto,budget=20000"),
    "O3": _CHAIN.format(search="method=auto,budget=200000"),
}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A sequence of passes. `text` is what it was parsed from and `spans` where each pass stands in it."""

    passes: tuple[AnyPass, ...]
    text: str = dataclasses.field(default="", compare=False)
    spans: tuple[Span, ...] = dataclasses.field(default=(), compare=False)

    def __str__(self) -> str:
        return ",".join(print_pass(p) for p in self.passes)

    def replace_options(self, name: str, **options: object) -> "Pipeline":
        """The same pipeline with the given options of every pass called `name` replaced.

        Raises UsageFailure E922 when the pipeline has no such pass or the pass no such option.
        """
        if not any(p.name == name for p in self.passes):
            raise usage_error(
                "E922", f"the pipeline `{self}` has no pass `{name}` to set {_list(options)} of"
            )
        passes = []
        for p in self.passes:
            if p.name == name:
                unknown = options.keys() - option_types(type(p)).keys()
                if unknown:
                    raise usage_error("E922", f"pass `{name}` has no option {_list(sorted(unknown))}")
                passes.append(_build(type(p), {**option_values(p), **options}))
            else:
                passes.append(p)
        return dataclasses.replace(self, passes=tuple(passes))

    def between(self, source: str, target: str) -> "Pipeline":
        """The part that leads from stage `source` to stage `target`, both included."""
        start = next((i for i, p in enumerate(self.passes) if p.source is STAGES[source]), len(self.passes))
        return self.part(start).until(target)

    def until(self, target: str) -> "Pipeline":
        """The part up to the last pass that makes stage `target`; nothing if no pass does."""
        makes = [i for i, p in enumerate(self.passes) if p.target is STAGES[target]]
        return self.part(0, makes[-1] + 1 if makes else 0)

    def part(self, start: int, stop: int | None = None) -> "Pipeline":
        """The passes from `start` up to but not including `stop`."""
        return dataclasses.replace(self, passes=self.passes[start:stop], spans=self.spans[start:stop])

    def check(self, source: str | None, target: str | None) -> None:
        """Check that the passes fit together, take stage `source`, and end in `target` (None: any).

        Raises UsageFailure E924 with a caret at the first pass that does not fit.
        """
        stage: type | None = None if source is None else STAGES[source]
        came_from = f"the input is `{source}`"
        for i, p in enumerate(self.passes):
            if stage is not None and p.source is not stage:
                raise self._misfit(i, came_from)
            stage, came_from = p.target, f"`{p.name}` makes `{stage_of(p.target)}`"
        if target is not None and stage is not None and stage is not STAGES[target]:
            raise usage_error(
                "E924",
                f"the pipeline `{self}` ends in stage `{stage_of(stage)}`, not in `{target}`",
                help=f"add the passes that lead to it, or ask for `--emit {stage_of(stage)}`",
            )

    def _misfit(self, index: int, came_from: str) -> UsageFailure:
        wrong = self.passes[index]
        message = f"pass `{wrong.name}` needs stage `{stage_of(wrong.source)}`, but {came_from}"
        if not self.spans:
            return usage_error("E924", message)
        return usage_error_at("E924", message, source=("-p", self.text), span=self.spans[index])


def stage_of(kind: type) -> str:
    """Name of the stage whose type is `kind`, or the type's own name for a plugin's stage."""
    return next((name for name, known in STAGES.items() if known is kind), kind.__name__)


def option_types(kind: type[AnyPass]) -> dict[str, typing.Any]:
    """Type of each option of a pass, in declaration order."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def option_values(p: AnyPass) -> dict[str, object]:
    """Value of each option of a pass, in declaration order."""
    return {name: getattr(p, name) for name in option_types(type(p))}


def print_pass(p: AnyPass) -> str:
    """A pass as pipeline text; options at their default are left out."""
    defaults = {f.name: f.default for f in dataclasses.fields(p)}
    options = [f"{k}={print_value(v)}" for k, v in option_values(p).items() if v != defaults[k]]
    return p.name + (f"{{{','.join(options)}}}" if options else "")


def print_value(value: object) -> str:
    """An option's value as pipeline text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if WORD.fullmatch(value) and value != "none" else json.dumps(value)
    return repr(value)


def parse_pipeline(text: str, load: Load | None = None) -> Pipeline:
    """Read pipeline text; `load` finds a pass by name (default: among the registered ones).

    Raises UsageFailure E920 (syntax), E921 (unknown pass), E922 (unknown option) or E923 (bad value).
    """
    return _Parser(text, load or load_pass).pipeline()


def named_pipeline(name: str) -> Pipeline:
    """The pipeline behind an optimisation level (`O0` … `O3`)."""
    return parse_pipeline(NAMED[name])


class _Parser:
    def __init__(self, text: str, load: Load) -> None:
        self.text, self.load, self.at = text, load, 0

    def pipeline(self) -> Pipeline:
        passes, spans = [], []
        while True:
            parsed, span = self.one_pass()
            passes.append(parsed)
            spans.append(span)
            self.space()
            if self.at == len(self.text):
                return Pipeline(tuple(passes), self.text, tuple(spans))
            self.expect(",", "`,` or the end")

    def one_pass(self) -> tuple[AnyPass, Span]:
        name, start, end = self.word("a pass name")
        try:
            kind = self.load(name)
        except UsageFailure as exc:
            found = exc.diagnostics[0]
            if found.code != "E921":
                raise
            raise self.fail("E921", found.message, start, end, help=found.help) from exc
        options = self.options(kind) if self.peek("{") else {}
        span = Span(start=start, end=self.at if options else end)
        try:
            return _build(kind, options), span
        except UsageFailure as exc:
            found = exc.diagnostics[0]
            raise self.fail(found.code, found.message, span.start, span.end) from exc

    def options(self, kind: type[AnyPass]) -> dict[str, object]:
        known = option_types(kind)
        found: dict[str, object] = {}
        self.expect("{", "`{`")
        while not self.peek("}"):
            if found:
                self.expect(",", "`,` or `}`")
            name, start, end = self.word("an option")
            if name not in known:
                message = f"pass `{kind.name}` has no option `{name}`"
                raise self.fail("E922", message, start, end, help=suggestion(name, known))
            if name in found:
                raise self.fail("E922", f"option `{name}` is given twice", start, end)
            self.expect("=", "`=`")
            found[name] = self.value(name, known[name])
        self.expect("}", "`}`")
        return found

    def value(self, option: str, kind: typing.Any) -> object:
        self.space()
        start = self.at
        quoted = STRING.match(self.text, self.at)
        if quoted:
            self.at = quoted.end()
            raw = quoted.group()
        else:
            raw, start, _ = self.word("a value")
        try:
            return _convert(raw, kind, quoted=quoted is not None)
        except ValueError as exc:
            message = f"option `{option}` needs {type_text(kind)}, not `{raw}`"
            raise self.fail("E923", message, start, self.at) from exc

    def space(self) -> None:
        match = SPACE.match(self.text, self.at)
        assert match
        self.at = match.end()

    def peek(self, mark: str) -> bool:
        self.space()
        return self.text.startswith(mark, self.at)

    def expect(self, mark: str, wanted: str) -> None:
        if not self.peek(mark):
            raise self.unexpected(wanted)
        self.at += len(mark)

    def word(self, wanted: str) -> tuple[str, int, int]:
        self.space()
        match = WORD.match(self.text, self.at)
        if not match:
            raise self.unexpected(wanted)
        self.at = match.end()
        return match.group(), match.start(), match.end()

    def unexpected(self, wanted: str) -> UsageFailure:
        found = f"`{self.text[self.at]}`" if self.at < len(self.text) else "the end"
        return self.fail("E920", f"expected {wanted} in the pipeline, found {found}", self.at, self.at + 1)

    def fail(self, code: str, message: str, start: int, end: int, help: str = "") -> UsageFailure:
        span = Span(start=start, end=end)
        return usage_error_at(code, message, source=("-p", self.text), span=span, help=help)


def _build(kind: type[AnyPass], options: dict[str, object]) -> AnyPass:
    """A pass with these options. Raises UsageFailure E923 when the pass itself refuses a value."""
    try:
        return kind(**options)
    except (TypeError, ValueError) as exc:
        raise usage_error("E923", f"pass `{kind.name}` refuses its options: {exc}") from exc


def _alternatives(kind: typing.Any) -> tuple[typing.Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _convert(raw: str, kind: typing.Any, *, quoted: bool) -> object:
    kinds = _alternatives(kind)
    if quoted:
        if str not in kinds:
            raise ValueError(raw)
        text: str = json.loads(raw)
        return text
    if raw == "none" and type(None) in kinds:
        return None
    if bool in kinds and raw in ("true", "false"):
        return raw == "true"
    for number in (int, float):
        if number in kinds:
            try:
                value = number(raw)
            except ValueError:
                continue
            if not math.isnan(value):
                return value
    for literal in kinds:
        if typing.get_origin(literal) is typing.Literal and raw in typing.get_args(literal):
            return raw
    if str in kinds:
        return raw
    raise ValueError(raw)


def type_text(kind: typing.Any) -> str:
    """An option's type in words."""
    words = {bool: "`true` or `false`", int: "a whole number", float: "a number", str: "a word or a string"}
    words[type(None)] = "`none`"
    parts = []
    for k in _alternatives(kind):
        if typing.get_origin(k) is typing.Literal:
            parts.append("one of " + ", ".join(f"`{v}`" for v in typing.get_args(k)))
        else:
            parts.append(words.get(k, str(k)))
    return " or ".join(parts)


def _list(names: typing.Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)
