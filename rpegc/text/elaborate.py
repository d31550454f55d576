"""Tree to problem: names resolved, expressions evaluated, every place entered into the source map.

Only what concerns the text itself is refused here (unknown keys, wrong types, unresolved architectures);
whether the graph is well-formed is the business of pass `verify`, for text and JSON alike. Presets have
been expanded before; a `use` that is still there could not be.
"""

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ir_schema.base import Head, Record, Role
from ir_schema.device import DeviceSpace
from ir_schema.diagnostics import Diagnostic, DiagnosticError, Label, SourceMap
from ir_schema.hardware import Hardware
from ir_schema.model import ModelSpec
from ir_schema.problem import (
    Container,
    Edge,
    Graph,
    Options,
    PartialPlacement,
    Problem,
    RunConfig,
    SearchSpace,
    Verifier,
    Vertex,
    Workload,
)
from rpegc.diagnostics.source import Source, locate
from rpegc.failure import suggestion
from rpegc.text import tree
from rpegc.text.convert import Converter, Rejected, construct, field_types, missing_keys, normal
from rpegc.text.findings import finding
from rpegc.text.grammar import SHAPES

R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True)
class Resolver:
    """What elaboration asks of the rest of the compiler.

    `model` finds an architecture by shipped name or path, `hardware` a machine likewise, `parameters`
    counts N_m of a model of a problem under its cost model. All raise DiagnosticError.
    """

    model: Callable[[str, Head], ModelSpec]
    hardware: Callable[[str], Hardware]
    parameters: Callable[[Problem, str], int]


_CLUSTER = {"hardware": str | Hardware, "racks": int, "nodes": int, "gpus": int}
_MODEL = {"arch": str | None, "trainable": bool, "staleness": int | None, **field_types(ModelSpec, "head")}
_OP = {**field_types(Vertex, "name", "role"), "verifier": str | None}
_CONTAINER = field_types(Container, "name")
_NOTHING = tree.Block(())


def elaborate(
    file: tree.File,
    resolver: Resolver,
    options: Mapping[str, Any] | None = None,
    found: Sequence[Diagnostic] = (),
) -> tuple[Problem, SourceMap]:
    """The problem that `file` describes and where its parts stand; `options` override those of the file.

    `found` are findings of earlier steps: then there is no problem, but all findings are reported together.
    Raises DiagnosticError with every finding: E011 to E016 and E15x, and what the resolver reports.
    """
    elaborator = _Elaborator(file, resolver, options or {})
    elaborator.problems += found
    problem = elaborator.problem()
    if problem is None or elaborator.problems:
        source = Source("", "", elaborator.source_map)
        raise DiagnosticError(sorted(elaborator.pinned(), key=source.first_position))
    return problem, elaborator.source_map


class _Elaborator(Converter):
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

    def problem(self) -> Problem | None:
        """The whole problem; None if something was reported that leaves no problem at all."""
        options = self.options()
        workload = self.only("workload", Workload)
        hardware, space = self.cluster()
        models, trainable, staleness = self.models()
        plan = dict(self.named("plan", PartialPlacement))
        search = self.only("search", SearchSpace, required=False)
        run = self.only("run", RunConfig, required=False)
        about = self.by_keyword["about"]
        self.source_map["name"] = self.file.name.span
        bare = None
        if options is not None and workload is not None and hardware is not None and space is not None:
            values = {
                "name": self.file.name.text,
                "about": about[0].words[0].text if about else "",
                "options": options,
                "workload": workload,
                "models": models,
                "hardware": hardware,
                "device_space": space,
                "graph": Graph(vertices=(), trainable=trainable, staleness=staleness),
                "plan": plan,
                "search": search,
                "run": run,
            }
            bare = construct(Problem, values)
        self.prepare_expressions(bare)
        vertices, host = self.vertices()
        data = self.edges("data", "graph.data_edges")
        publications = self.edges("publish", "graph.publication_edges")
        containers = self.containers()
        inputs = self.listed("input", "graph.inputs")
        outputs = self.listed("output", "graph.outputs")
        if bare is None:
            return None
        graph = msgspec.structs.replace(
            bare.graph,
            vertices=vertices,
            data_edges=data,
            publication_edges=publications,
            containers=containers,
            inputs=inputs,
            outputs=outputs,
        )
        return msgspec.structs.replace(bare, graph=graph, host=host)

    # blocks that stand once

    def only(self, keyword: str, kind: type[R], required: bool = True) -> R | None:
        """The record of a statement that stands once."""
        statements = self.by_keyword[keyword]
        if not statements:
            if required:
                self.lacks(keyword)
            return None
        try:
            return self.record(statements[0].body or _NOTHING, kind, keyword, statements[0].span)
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
        values, _ = self.entries(statement.body or _NOTHING, _CLUSTER, "cluster", "`cluster`")
        missing = missing_keys(statement.body or _NOTHING, _CLUSTER, _CLUSTER)
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
            answer: T = normal(ask())
            return answer
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
                yield name, self.record(statement.body or _NOTHING, kind, path, statement.span, what)
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

    def models(self) -> tuple[dict[str, ModelSpec], tuple[str, ...], dict[str, int]]:
        """Models, trainable models, staleness budgets."""
        models: dict[str, ModelSpec] = {}
        trainable: list[str] = []
        staleness: dict[str, int] = {}
        for statement in self.unique("model"):
            name = statement.words[0].text
            path, what = f"models.{name}", f"`model {name}`"
            self.source_map |= {path: statement.span, f"{path}.head": statement.words[1].span}
            body = statement.body or _NOTHING
            values, valid = self.entries(body, _MODEL, path, what)
            if values.pop("trainable", False):
                self.source_map[f"graph.trainable[{len(trainable)}]"] = statement.span
                trainable.append(name)
            tau = values.pop("staleness", None)
            if tau is not None:
                self.alias(f"{path}.staleness", f"graph.staleness.{name}")
                staleness[name] = tau
            try:
                values |= self.head(statement.words[1], "head", Head)
                values = self.with_architecture(values, path)
                models[name] = self.build(ModelSpec, values, valid, body, statement.span, what)
            except Rejected:
                continue
        return models, tuple(trainable), staleness

    def with_architecture(self, values: dict[str, Any], path: str) -> dict[str, Any]:
        """`values` on top of those of the architecture that they name."""
        arch = values.pop("arch", None)
        if arch is None:
            return values
        base = self.resolved(f"{path}.arch", lambda: self.resolver.model(arch, values["head"]))
        if base is None:
            raise Rejected
        return {name: getattr(base, name) for name in ModelSpec.__struct_fields__} | values

    def head(self, word: tree.Word, key: str, kind: Any) -> dict[str, str]:
        """The word behind the colon of a statement, as the value of `key`."""
        return {key: self.literal(tree.Name(word.text, span=word.span), typing.get_args(kind))}

    def vertices(self) -> tuple[tuple[Vertex, ...], dict[str, Verifier]]:
        """The vertices in the order of the file, which is their index, and the verifiers of host vertices."""
        verifiers = dict(self.named("verifier", Verifier))
        unused = {s.words[0].text: s for s in self.by_keyword["verifier"]}
        known = list(unused)
        settled = not self.by_keyword["use"]
        vertices: list[Vertex] = []
        host: dict[str, Verifier] = {}
        for i, statement in enumerate(self.by_keyword["op"]):
            name, role = statement.words
            path, what = f"graph.vertices[{i}]", f"`op {name.text}`"
            places = {path: statement.span, f"{path}.name": name.span, f"{path}.role": role.span}
            self.source_map |= places
            body = statement.body or _NOTHING
            values, valid = self.entries(body, _OP, path, what)
            verifier = values.pop("verifier", None)
            if verifier is not None:
                unused.pop(verifier, None)
                if verifier not in known:
                    settled = False
                    help = suggestion(verifier, known) or f"declare it: `{SHAPES['verifier'].example}`"
                    span = self.source_map[f"{path}.verifier"]
                    self.problems.append(finding("E152", f"unknown verifier `{verifier}`", span, help=help))
                elif verifier in verifiers:
                    host[name.text] = verifiers[verifier]
                    self.alias(f"verifier.{verifier}", f"host.{name.text}")
            try:
                values |= {"name": name.text, **self.head(role, "role", Role)}
                vertices.append(self.build(Vertex, values, valid, body, statement.span, what))
            except Rejected:
                continue
        for unneeded, statement in unused.items() if settled else ():
            help = f"refer to it in an op, `verifier = {unneeded}`, or in a preset, `reward = {unneeded}`"
            self.problems.append(
                finding("E153", f"verifier `{unneeded}` is used by no op", statement.span, help=help)
            )
        return tuple(vertices), host

    # expressions

    def prepare_expressions(self, problem: Problem | None) -> None:
        """Make the workload and the model functions known to expressions; None where they are unknown."""
        declared = [s.words[0].text for s in self.by_keyword["model"]]

        def model(call: tree.Call) -> ModelSpec:
            name = call.argument.text
            if name not in declared:
                help = suggestion(name, declared)
                self.reject("E151", f"unknown model `{name}`", call.argument.span, help=help)
            if problem is None or name not in problem.models:
                raise Rejected
            return problem.models[name]

        def parameters(call: tree.Call) -> int:
            model(call)
            assert problem is not None
            try:
                count = self.resolved("", lambda: self.resolver.parameters(problem, call.argument.text))
            except ArithmeticError:
                message = f"the parameters of `{call.argument.text}` cannot be counted"
                self.reject("E016", message, call.span, help="check the sizes of the model")
            if count is None:
                raise Rejected
            return count

        self.names = None if problem is None else sizes_of(problem.workload)
        self.functions = {
            "parameters": parameters,
            "bytes_per_parameter": lambda call: model(call).bytes_per_parameter,
        }

    # the graph

    def edges(self, keyword: str, path: str) -> tuple[Edge, ...]:
        """The edges of one kind in the order of the file."""
        edges = []
        for i, statement in enumerate(self.by_keyword[keyword]):
            self.source_map[f"{path}[{i}]"] = statement.span
            for j, word in enumerate(statement.words):
                self.source_map[f"{path}[{i}][{j}]"] = word.span
            edges.append(Edge(*(word.text for word in statement.words)))
        return tuple(edges)

    def containers(self) -> tuple[Container, ...]:
        """The containers in the order of the file."""
        containers: list[Container] = []
        for i, statement in enumerate(self.by_keyword["container"]):
            name = statement.words[0]
            path, what = f"graph.containers[{i}]", f"`container {name.text}`"
            self.source_map |= {path: statement.span, f"{path}.name": name.span}
            body = statement.body or _NOTHING
            values, valid = self.entries(body, _CONTAINER, path, what)
            try:
                values["name"] = name.text
                containers.append(self.build(Container, values, valid, body, statement.span, what))
            except Rejected:
                continue
        return tuple(containers)

    def listed(self, keyword: str, path: str) -> tuple[str, ...]:
        """The names of all statements of `keyword`."""
        words = [word for statement in self.by_keyword[keyword] for word in statement.words]
        self.source_map |= {f"{path}[{i}]": word.span for i, word in enumerate(words)}
        return tuple(word.text for word in words)


def final_options(written: Options, overrides: Mapping[str, Any], named: bool) -> Options:
    """The options of a file with `overrides`; `named` says whether the file names a cost model.

    The printed form means the printed cost model, unless whoever asks for that form names another.
    """
    options = msgspec.structs.replace(written, **overrides)
    asked = bool(overrides.get("as_printed"))
    if "cost_model" not in overrides and options.as_printed and (asked or not named):
        return msgspec.structs.replace(options, cost_model="paper")
    return options


def sizes_of(workload: Workload) -> dict[str, int]:
    """The names that expressions may use: the whole numbers of the workload."""
    return {key: value for key, value in msgspec.structs.asdict(workload).items() if isinstance(value, int)}
