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
    """Optimizer steps on a policy, a value function, or both. The containers that it reads, by meaning."""

    tokens: str
    reward: str
    values: str
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
        self.findings: list[str] = []
        self.tasks: dict[str, Task] = {}

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
            self.refuse(v, f"reads `{tokens}`, which no generation samples")
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
            if source is None or meaning is None:
                self.refuse(v, f"reads `{a}`, whose meaning in training is not known")
            elif meaning != "logprobs":
                found[meaning].append(a)
            elif source.role == "generation":
                found["behaviour"].append(a)
            else:
                found["policy" if source.model in self.graph.trainable else "reference"].append(a)
        for a in found["policy"]:
            self.refuse(v, f"reads `{a}`, log-probabilities of a trainable model recomputed by inference")
        spec = self.problem.models[v.model]
        tokens = self.one(v, "tokens among the inputs to be trained by PPO", found["tokens"])
        reward = self.one(v, "rewards among the inputs to be trained by PPO", found["reward"])
        values = self.one(v, "values among the inputs to be trained by PPO", found["values"])
        logprobs, reference = found["behaviour"], found["reference"]
        if spec.has_lm_head or len(logprobs) > 1:
            self.one(v, "log-probabilities of the generating version among the inputs", logprobs)
        if len(reference) > 1:
            self.one(v, "reference log-probabilities among the inputs", reference)
        if tokens is None or reward is None or values is None:
            return
        self.tasks[v.name] = Train(
            tokens=tokens,
            reward=reward,
            values=values,
            logprobs=logprobs[0] if logprobs else None,
            reference=reference[0] if reference else None,
            policy=spec.has_lm_head,
            value=spec.has_scalar_head,
        )


def understand(problem: Problem) -> Semantics:
    """Tasks and meanings of `problem`'s graph. Raises NotUnderstood with every finding."""
    reader = _Reader(problem)
    for role in ("generation", "inference", "training"):
        for v in problem.graph.vertices:
            if v.role == role:
                getattr(reader, role)(v)
    if reader.findings:
        raise NotUnderstood(reader.findings)
    return Semantics(tasks=reader.tasks, meaning=reader.meaning)
