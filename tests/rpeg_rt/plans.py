"""Tiny PPO problems and executables of any plan, for tests of the runtime.

The tokenizer is `bytes`, the prompts are written by `write_prompts`, the verifier is `verify` below.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from ir_schema.envelope import encode_stage
from ir_schema.model import ModelSpec
from ir_schema.problem import (
    Container,
    Edge,
    Graph,
    Optimizer,
    Options,
    Placement,
    Problem,
    RunConfig,
    Verifier,
    Vertex,
    Workload,
)
from ir_schema.stages import Configuration, Executable
from passes.assemble import assemble
from passes.evaluate import evaluate
from tests.strategies import HARDWARE

VERTICES = ("actor_gen", "ref_inf", "reward_inf", "critic_inf", "actor_train", "critic_train")


def verify(prompt: str, response: str, record: dict[str, Any]) -> float:
    """A reward that depends on everything that it is given."""
    return (sum(map(ord, response)) % 7 + len(prompt)) / 10 + record["bonus"]


def write_prompts(directory: Path, count: int = 10) -> Path:
    """A JSONL file of short prompts with pairs of responses, and the verifier as a module beside it."""
    path = directory / "prompts.jsonl"
    lines = [
        json.dumps(
            {
                "prompt": "ab" + "c" * (i % 3) + str(i),
                "bonus": i / 4,
                "chosen": "b" * (i % 4) + str(i),
                "rejected": "ac0"[: i % 5],
            }
        )
        for i in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")
    source = inspect.getsource(verify).replace("Any", "object")
    (directory / "tiny_verifier.py").write_text(source)
    return path


def place(
    gpus: str, dp: int = 1, pp: int = 1, tp: int = 1, mb: int = 1, waves: int = 1, cp: int = 1
) -> Placement:
    """A vertex on GPUs "a" or "a-b" of node 0.0."""
    first, _, last = gpus.partition("-")
    count = int(last or first) - int(first) + 1
    assert count == dp * pp * tp * cp
    return Placement(
        origin=(0, 0, int(first)),
        extent=(1, 1, count),
        data_parallel=dp,
        pipeline_parallel=pp,
        tensor_parallel=tp,
        microbatches=mb,
        waves=waves,
        context_parallel=cp,
    )


def colocated(dp: int = 1, pp: int = 1, tp: int = 1, **changes: Placement) -> dict[str, Placement]:
    """All vertices on the same GPUs with one layout, but for `changes`."""
    gpus = dp * pp * tp
    everywhere = place("0" if gpus == 1 else f"0-{gpus - 1}", dp, pp, tp)
    return dict.fromkeys(VERTICES, everywhere) | changes


def problem(
    *,
    staleness: int = 0,
    quantiles: tuple[tuple[float, int], ...] = (),
    reward_model: bool = False,
    fuse: bool = False,
    workload: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    verifier: str = "tiny_verifier:verify",
    device_space: tuple[int, int, int] = (1, 1, 4),
    cost_model: str = "paper",
) -> Problem:
    """PPO with actor, critic, reference, and a verifier (or a reward model); `fuse`: both trainings."""
    trainers = ("actor_train", "critic_train")
    w = Workload(
        **{
            "prompts": 4,
            "rollouts": 2,
            "prompt_length": 6,
            "response_length": 8,
            "length_quantiles": quantiles,
            **(workload or {}),
        }
    )
    lm = ModelSpec(
        layers=2,
        hidden=16,
        ffn=32,
        vocabulary=260,
        head="lm",
        attention_heads=4,
        kv_heads=2,
        bytes_per_parameter=4,
    )
    scalar = ModelSpec(
        layers=2,
        hidden=16,
        ffn=32,
        vocabulary=260,
        head="scalar",
        attention_heads=4,
        kv_heads=2,
        bytes_per_parameter=4,
    )
    models = {"actor": lm, "reference": lm, "critic": scalar}
    if reward_model:
        models["reward"] = scalar
    frozen = {"reference": "W_ref"} | ({"reward": "W_reward"} if reward_model else {})
    rewarding = ("W_reward", "Y") if reward_model else ("Y",)
    vertices = (
        Vertex(
            name="actor_gen",
            role="generation",
            model="actor",
            reads=("W_actor", "X"),
            writes=("Y", "logp_actor"),
        ),
        Vertex(
            name="ref_inf", role="inference", model="reference", reads=("W_ref", "Y"), writes=("logp_ref",)
        ),
        Vertex(
            name="reward_inf",
            role="inference",
            model="reward" if reward_model else None,
            reads=rewarding,
            writes=("r",),
        ),
        Vertex(name="critic_inf", role="inference", model="critic", reads=("W_critic", "Y"), writes=("v",)),
        Vertex(
            name="actor_train",
            role="training",
            model="actor",
            reads=("W_actor", "Y", "logp_actor", "logp_ref", "r", "v"),
            writes=("W_actor",),
        ),
        Vertex(
            name="critic_train",
            role="training",
            model="critic",
            reads=("W_critic", "Y", "logp_ref", "r", "v"),
            writes=("W_critic",),
        ),
    )
    edges = [Edge("actor_gen", v, "Y") for v in ("ref_inf", "reward_inf", "critic_inf")]
    for source, container in (("ref_inf", "logp_ref"), ("reward_inf", "r"), ("critic_inf", "v")):
        edges += [Edge(source, t, container) for t in trainers]
    sizes = {
        "X": w.prompts * w.prompt_length,
        "Y": w.sequences * w.total_length,
        "logp_actor": w.sequences * w.response_length,
        "logp_ref": w.sequences * w.response_length,
        "v": w.sequences * w.response_length,
        "r": w.sequences,
    }
    weights = {"W_actor": "actor", "W_critic": "critic"} | {name: m for m, name in frozen.items()}
    containers = [Container(name=n, elements=20000, bytes_each=4, weights_of=m) for n, m in weights.items()]
    containers += [Container(name=n, elements=e, bytes_each=4) for n, e in sizes.items()]
    return Problem(
        name="tiny",
        options=Options(steps=4, cost_model=cost_model, fuse=trainers if fuse else None),
        workload=w,
        models=models,
        hardware=HARDWARE,
        device_space=device_space,
        graph=Graph(
            vertices=vertices,
            data_edges=tuple(edges),
            publication_edges=(
                Edge("actor_train", "actor_gen", "W_actor"),
                Edge("critic_train", "critic_inf", "W_critic"),
            ),
            containers=tuple(containers),
            trainable=("actor", "critic"),
            staleness={"actor": staleness, "critic": staleness},
            inputs=("X", *frozen.values()),
        ),
        host={}
        if reward_model
        else {"reward_inf": Verifier(seconds_per_response=0.001, workers=2, callable=verifier)},
        run=RunConfig(
            **{
                "steps": 3,
                "precision": "float64",
                "prompts": "prompts.jsonl",
                "optimizer": Optimizer(learning_rate=1e-3),
                **(run or {}),
            }
        ),
    )


def shared(made: Problem) -> Problem:
    """The same with the critic as a second head of the actor."""
    replace = msgspec.structs.replace
    models = {name: spec for name, spec in made.models.items() if name != "critic"}
    models["actor"] = replace(models["actor"], head="both")
    vertices = [
        replace(v, model="actor", reads=("W_actor", "Y")) if v.name == "critic_inf" else v
        for v in made.graph.vertices
        if v.name != "critic_train"
    ]
    graph = replace(
        made.graph,
        vertices=tuple(vertices),
        data_edges=tuple(e for e in made.graph.data_edges if e.target != "critic_train"),
        publication_edges=tuple(Edge("actor_train", v, "W_actor") for v in ("actor_gen", "critic_inf")),
        containers=tuple(c for c in made.graph.containers if c.name != "W_critic"),
        trainable=("actor",),
        staleness={"actor": made.graph.staleness["actor"]},
    )
    return replace(made, models=models, graph=graph)


def without_critic(made: Problem) -> Problem:
    """The same without values: the graph of GRPO and its kin."""
    replace = msgspec.structs.replace
    gone = ("critic_inf", "critic_train")
    vertices = [
        replace(v, reads=tuple(a for a in v.reads if a != "v"))
        for v in made.graph.vertices
        if v.name not in gone
    ]
    graph = replace(
        made.graph,
        vertices=tuple(vertices),
        data_edges=tuple(e for e in made.graph.data_edges if not {e.source, e.target} & set(gone)),
        publication_edges=(Edge("actor_train", "actor_gen", "W_actor"),),
        containers=tuple(c for c in made.graph.containers if c.name not in ("W_critic", "v")),
        trainable=("actor",),
        staleness={"actor": made.graph.staleness["actor"]},
    )
    models = {name: spec for name, spec in made.models.items() if name != "critic"}
    return replace(made, models=models, graph=graph)


def from_pairs(made: Problem) -> Problem:
    """The graph of DPO, with sizes of the workload of `made`."""
    replace = msgspec.structs.replace
    w = made.workload
    sizes = {
        "Y": w.sequences * w.total_length,
        "logp_actor": w.sequences * w.response_length,
        "logp_ref": w.sequences * w.response_length,
    }
    containers = [
        Container(name=f"W_{n}", elements=20000, bytes_each=4, weights_of=m)
        for n, m in (("actor", "actor"), ("ref", "reference"))
    ]
    containers += [Container(name=n, elements=e, bytes_each=4) for n, e in sizes.items()]
    graph = Graph(
        vertices=(
            Vertex(
                name="ref_inf",
                role="inference",
                model="reference",
                reads=("W_ref", "Y"),
                writes=("logp_ref",),
            ),
            Vertex(
                name="actor_inf",
                role="inference",
                model="actor",
                reads=("W_actor", "Y"),
                writes=("logp_actor",),
            ),
            Vertex(
                name="actor_train",
                role="training",
                model="actor",
                reads=("W_actor", "Y", "logp_actor", "logp_ref"),
                writes=("W_actor",),
            ),
        ),
        data_edges=(
            Edge("ref_inf", "actor_train", "logp_ref"),
            Edge("actor_inf", "actor_train", "logp_actor"),
        ),
        publication_edges=(Edge("actor_train", "actor_inf", "W_actor"),),
        containers=tuple(containers),
        trainable=("actor",),
        staleness={"actor": made.graph.staleness["actor"]},
        inputs=("Y", "W_ref"),
    )
    models = {name: made.models[name] for name in ("actor", "reference")}
    return replace(made, models=models, graph=graph, host={})


def trained(gpus: str, dp: int = 1, pp: int = 1, mb: tuple[int, int] = (1, 1)) -> dict[str, Placement]:
    """Both trainings in one place, as fusion wants them; microbatches of actor and critic."""
    return {
        f"{model}_train": place(gpus, dp, pp, mb=count)
        for model, count in zip(("actor", "critic"), mb, strict=True)
    }


def executable(problem: Problem, plan: dict[str, Placement]) -> Executable:
    """The executable of `problem` under `plan` (host vertices need no placement)."""
    plan = {name: p for name, p in plan.items() if name not in problem.host}
    return assemble(evaluate(Configuration(problem=problem, plan=plan)))


def write_plan(directory: Path, executable: Executable) -> Path:
    """A directory with `plan.exe.json` and its prompts."""
    path = directory / "plan.exe.json"
    path.write_bytes(encode_stage(executable))
    if not (directory / "prompts.jsonl").exists():
        write_prompts(directory)
    return path
