"""What each vertex of a graph computes and what each of its containers means.

Derived from roles, heads, sizes and producers, never from names or presets. What cannot be told is
refused by name: the runtime guesses nothing.
"""

from dataclasses import dataclass
from typing import Literal

from ir_schema.problem import Problem, Vertex

Meaning = Literal["weights", "prompts", "tokens", "logprobs", "values", "reward"]


@dataclass(frozen=True)
class Generate:
    """Samples responses: `prompts` in, `tokens` and the sampling log-probabilities `logprobs` out."""

    prompts: str
    tokens: str
    logprobs: str


@dataclass(frozen=True)
class Score:
    """One forward pass over `tokens`: `output` holds log-probabilities, values or sequence rewards."""

    tokens: str
    output: str
    kind: Literal["logprobs", "values", "reward"]


@dataclass(frozen=True)
class Verify:
    """A host callable that gives each response of `tokens` its reward `output`."""

    tokens: str
    output: str


@dataclass(frozen=True)
class Train:
    """Optimizer steps on a policy, a value function, or both. The containers that it reads, by meaning.

    `logprobs` are those of the version that generated `tokens`, or where they come from outside (preference
    pairs) of the version that scored them.
    """

    tokens: str
    reward: str | None
    values: str | None
    logprobs: str | None
    reference: str | None
    policy: bool
    value: bool


Task = Generate | Score | Verify | Train


@dataclass(frozen=True)
class Semantics:
    """Tasks by vertex and meanings by container (weights included)."""

    tasks: dict[str, Task]
    meaning: dict[str, Meaning]

    def from_outside(self, problem: Problem) -> frozenset[str]:
        """The containers of a step that the host provides: prompts, or the tokens of preference pairs."""
        return frozenset(a for a in problem.graph.inputs if self.meaning.get(a) in ("prompts", "tokens"))

    def width(self, container: str, problem: Problem) -> int | None:
        """Elements per sequence of a container's rows; None where a row is one number."""
        meaning, w = self.meaning[container], problem.workload
        if meaning == "reward":
            return None
        return {"prompts": w.prompt_length, "tokens": w.total_length}.get(meaning, w.response_length)


class NotUnderstood(Exception):
    """The graph says something whose meaning the runtime cannot tell; one sentence per finding."""

    def __init__(self, findings: list[str]) -> None:
        self.findings = findings
        super().__init__("; ".join(findings))


class _Reader:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.graph = problem.graph
        self.elements = {c.name: c.elements for c in problem.graph.containers}
        self.meaning: dict[str, Meaning] = {
            c.name: "weights" for c in problem.graph.containers if c.weights_of is not None
        }
        self.producer = {
            a: v
            for v in self.graph.vertices
            for a in v.writes
            if a not in self.meaning and v.role != "training"
        }
        run = problem.run
        self.algorithm = "ppo" if run is None else run.algorithm
        self.findings: list[str] = []
        self.tasks: dict[str, Task] = {}
        self._pairs()

    def _pairs(self) -> None:
        """Where nobody generates, token rows that come from outside are preference pairs."""
        w = self.problem.workload
        if any(v.role == "generation" for v in self.graph.vertices):
            return
        for a in self.graph.inputs:
            if a not in self.meaning and self.elements[a] == w.sequences * w.total_length:
                self.meaning[a] = "tokens"

    def refuse(self, v: Vertex, text: str) -> None:
        self.findings.append(f"vertex `{v.name}` ({v.role}) {text}")

    def rows(self, names: tuple[str, ...]) -> list[str]:
        return [a for a in names if self.meaning.get(a) != "weights"]

    def one(self, v: Vertex, meaning: str, names: list[str]) -> str | None:
        """The only name in the list; None and a finding otherwise."""
        if len(names) == 1:
            return names[0]
        listed = " (" + ", ".join(f"`{a}`" for a in names) + ")" if names else ""
        self.refuse(v, f"must have exactly one container of {meaning}, not {len(names)}{listed}")
        return None

    def sized(self, name: str, elements: int, v: Vertex, meaning: Meaning) -> None:
        """Record the meaning of a container and check that its size agrees."""
        self.meaning[name] = meaning
        if self.elements[name] != elements:
            self.refuse(
                v,
                f"makes `{name}` with {self.elements[name]} elements where {meaning} of this workload have "
                f"{elements}",
            )

    def generation(self, v: Vertex) -> None:
        w = self.problem.workload
        if v.model is not None and not self.problem.models[v.model].has_lm_head:
            self.refuse(v, f"samples from model `{v.model}`, which has no vocabulary head")
        prompts = self.one(v, "prompts among the inputs", self.rows(v.reads))
        written = self.rows(v.writes)
        tokens = self.one(
            v,
            "tokens among the outputs",
            [a for a in written if self.elements[a] == w.sequences * w.total_length],
        )
        logprobs = self.one(v, "log-probabilities among the outputs", [a for a in written if a != tokens])
        if prompts is None or tokens is None or logprobs is None:
            return
        if prompts in self.producer:
            self.refuse(
                v, f"continues `{prompts}` of `{self.producer[prompts].name}`; only prompts are continued"
            )
        self.sized(prompts, w.prompts * w.prompt_length, v, "prompts")
        self.sized(tokens, w.sequences * w.total_length, v, "tokens")
        self.sized(logprobs, w.sequences * w.response_length, v, "logprobs")
        self.tasks[v.name] = Generate(prompts, tokens, logprobs)

    def inference(self, v: Vertex) -> None:
        w = self.problem.workload
        tokens = self.one(v, "tokens among the inputs", self.rows(v.reads))
        output = self.one(v, "results among the outputs", self.rows(v.writes))
        if tokens is None or output is None:
            return
        if self.meaning.get(tokens) != "tokens":
            self.refuse(v, f"reads `{tokens}`, which no generation samples and which is no input of pairs")
            return
        kind: Literal["logprobs", "values", "reward"]
        if v.model is None:
            kind = "reward"
        elif not self.problem.models[v.model].has_scalar_head:
            kind = "logprobs"
        else:
            kind = "values" if v.model in self.graph.trainable else "reward"
        self.sized(output, w.sequences * (1 if kind == "reward" else w.response_length), v, kind)
        self.tasks[v.name] = Verify(tokens, output) if v.model is None else Score(tokens, output, kind)

    def training(self, v: Vertex) -> None:
        if v.model is None:
            self.refuse(v, "trains no model")
            return
        found: dict[str, list[str]] = {
            k: [] for k in ("tokens", "behaviour", "policy", "reference", "reward", "values")
        }
        for a in self.rows(v.reads):
            source = self.producer.get(a)
            meaning = self.meaning.get(a)
            if meaning is None or meaning == "prompts":
                self.refuse(v, f"reads `{a}`, whose meaning in training is not known")
            elif meaning != "logprobs" or source is None:
                found[meaning].append(a)
            elif source.role == "generation":
                found["behaviour"].append(a)
            else:
                found["policy" if source.model in self.graph.trainable else "reference"].append(a)
        spec = self.problem.models[v.model]
        if spec.has_scalar_head and self.algorithm != "ppo":
            self.refuse(v, f"trains a value function, which {self.algorithm.upper()} has not")
        self.trained(v, found, policy=spec.has_lm_head, value=spec.has_scalar_head)

    def trained(self, v: Vertex, found: dict[str, list[str]], *, policy: bool, value: bool) -> None:
        """The task of a training vertex that reads `found`: what its algorithm needs, and nothing else."""
        pairs, method = self.algorithm == "dpo", self.algorithm.upper()
        among = f"among the inputs to be trained by {method}"
        tokens = self.one(v, f"tokens {among}", found["tokens"])
        needed = () if pairs else ("reward", "values") if self.algorithm == "ppo" else ("reward",)
        names = {"reward": "rewards", "values": "values"}
        one: dict[str, str | None] = {}
        for what, name in names.items():
            if what in needed:
                one[what] = self.one(v, f"{name} {among}", found[what])
            elif found[what]:
                self.refuse(v, f"reads {name} (`{found[what][0]}`), which {method} has no use for")
        logprobs, other = ("policy", "behaviour") if pairs else ("behaviour", "policy")
        for a in found[other]:
            self.refuse(
                v,
                f"reads `{a}`, log-probabilities of responses just generated, but {method} learns from pairs"
                if pairs
                else f"reads `{a}`, log-probabilities of a trainable model recomputed by inference",
            )
        if (policy and not pairs) or len(found[logprobs]) > 1:
            whose = "policy before the update" if pairs else "generating version"
            self.one(v, f"log-probabilities of the {whose} among the inputs", found[logprobs])
        if pairs or len(found["reference"]) > 1:
            self.one(v, "reference log-probabilities among the inputs", found["reference"])
        if tokens is None or None in one.values():
            return
        if pairs and tokens in self.producer:
            self.refuse(
                v, f"learns from pairs, but `{tokens}` is generated by `{self.producer[tokens].name}`"
            )
        self.tasks[v.name] = Train(
            tokens=tokens,
            reward=one.get("reward"),
            values=one.get("values"),
            logprobs=next(iter(found[logprobs]), None),
            reference=next(iter(found["reference"]), None),
            policy=policy,
            value=value,
        )


def understand(problem: Problem) -> Semantics:
    """Tasks and meanings of `problem`'s graph. Raises NotUnderstood with every finding."""
    reader = _Reader(problem)
    if reader.algorithm == "dpo" and problem.workload.rollouts != 2:
        raise NotUnderstood([f"DPO learns from pairs: `rollouts` must be 2, not {problem.workload.rollouts}"])
    for role in ("generation", "inference", "training"):
        for v in problem.graph.vertices:
            if v.role == role:
                getattr(reader, role)(v)
    if reader.findings:
        raise NotUnderstood(reader.findings)
    return Semantics(tasks=reader.tasks, meaning=reader.meaning)
