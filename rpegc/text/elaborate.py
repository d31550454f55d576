"""Tree to problem: names resolved, expressions evaluated, every place entered into the source map.

Only what concerns the text itself is refused here (unknown keys, wrong types, unresolved architectures);
whether the graph is well-formed is the business of pass `verify`, for text and JSON alike. Presets have
been expanded before; a `use` that is still there could not be.
"""

import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ir_schema.base import Head, Role
from ir_schema.diagnostics import Diagnostic, DiagnosticError, SourceMap
from ir_schema.model import ModelSpec
from ir_schema.problem import (
    Container,
    Edge,
    Graph,
    PartialPlacement,
    Problem,
    RunConfig,
    SearchSpace,
    Verifier,
    Vertex,
    Workload,
)
from rpegc.diagnostics.source import Source
from rpegc.failure import suggestion
from rpegc.text import tree
from rpegc.text.convert import Rejected, field_types
from rpegc.text.findings import finding
from rpegc.text.grammar import SHAPES
from rpegc.text.sections import NOTHING, Resolver, Sections

_MODEL = {"arch": str | None, "trainable": bool, "staleness": int | None, **field_types(ModelSpec, "head")}
_OP = {**field_types(Vertex, "name", "role"), "verifier": str | None}
_CONTAINER = field_types(Container, "name")


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


class _Elaborator(Sections):
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
            bare = Problem(
                name=self.file.name.text,
                about=about[0].words[0].text if about else "",
                options=options,
                workload=workload,
                models=models,
                hardware=hardware,
                device_space=space,
                graph=Graph(vertices=(), trainable=trainable, staleness=staleness),
                plan=plan,
                search=search,
                run=run,
            )
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

    def models(self) -> tuple[dict[str, ModelSpec], tuple[str, ...], dict[str, int]]:
        """Models, trainable models, staleness budgets."""
        models: dict[str, ModelSpec] = {}
        trainable: list[str] = []
        staleness: dict[str, int] = {}
        for statement in self.unique("model"):
            name = statement.words[0].text
            path, what = f"models.{name}", f"`model {name}`"
            self.source_map |= {path: statement.span, f"{path}.head": statement.words[1].span}
            body = statement.body or NOTHING
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
            body = statement.body or NOTHING
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
            body = statement.body or NOTHING
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


def sizes_of(workload: Workload) -> dict[str, int]:
    """The names that expressions may use: the whole numbers of the workload."""
    return {key: value for key, value in msgspec.structs.asdict(workload).items() if isinstance(value, int)}
