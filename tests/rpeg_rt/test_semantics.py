"""What vertices compute is told by the graph, never by names; what cannot be told is refused by name."""

from typing import Any

import msgspec
import pytest

from ir_schema.problem import Edge, Problem, Vertex
from rpeg_rt.failure import PreflightError
from rpeg_rt.preflight import Machine, check
from rpeg_rt.semantics import Generate, NotUnderstood, Score, Train, Verify, understand
from tests.rpeg_rt.plans import VERTICES, colocated, executable, place, problem

replace = msgspec.structs.replace


def renamed(made: Problem, names: dict[str, str]) -> Problem:
    """The same problem with other names for everything in `names`."""
    text = msgspec.json.encode(made).decode()
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return msgspec.json.decode(text, type=Problem)


def with_vertex(made: Problem, name: str, **changes: Any) -> Problem:
    vertices = [replace(v, **changes) if v.name == name else v for v in made.graph.vertices]
    return replace(made, graph=replace(made.graph, vertices=tuple(vertices)))


def test_ppo_is_understood() -> None:
    found = understand(problem())
    assert found.tasks == {
        "actor_gen": Generate(prompts="X", tokens="Y", logprobs="logp_actor"),
        "ref_inf": Score(tokens="Y", output="logp_ref", kind="logprobs"),
        "reward_inf": Verify(tokens="Y", output="r"),
        "critic_inf": Score(tokens="Y", output="v", kind="values"),
        "actor_train": Train(
            tokens="Y",
            reward="r",
            values="v",
            logprobs="logp_actor",
            reference="logp_ref",
            policy=True,
            value=False,
        ),
        "critic_train": Train(
            tokens="Y", reward="r", values="v", logprobs=None, reference="logp_ref", policy=False, value=True
        ),
    }
    assert understand(problem(reward_model=True)).tasks["reward_inf"] == Score("Y", "r", "reward")


def test_names_mean_nothing() -> None:
    swapped = {
        "Y": "c1",
        "logp_actor": "c2",
        "v": "c3",
        "r": "c4",
        "X": "c5",
        "logp_ref": "c6",
        "actor_gen": "v1",
    }
    found = understand(renamed(problem(), swapped)).tasks
    assert found["v1"] == Generate(prompts="c5", tokens="c1", logprobs="c2")
    assert found["actor_train"] == Train("c1", "c4", "c3", "c2", "c6", policy=True, value=False)


def test_a_shared_backbone_is_one_training_of_both() -> None:
    made = problem()
    both = replace(made.models["actor"], head="both")
    made = replace(made, models=made.models | {"actor": both})
    vertices = [v for v in made.graph.vertices if v.name != "critic_train"]
    vertices = [
        replace(v, model="actor", reads=("W_actor", "Y")) if v.name == "critic_inf" else v for v in vertices
    ]
    found = understand(replace(made, graph=replace(made.graph, vertices=tuple(vertices)))).tasks
    assert found["critic_inf"] == Score("Y", "v", "values")
    assert found["actor_train"] == Train("Y", "r", "v", "logp_actor", "logp_ref", policy=True, value=True)


REFUSED = {
    "no tokens": (
        with_vertex(problem(), "ref_inf", reads=("W_ref",)),
        "`ref_inf`.*exactly one container of tokens",
    ),
    "two inputs": (with_vertex(problem(), "ref_inf", reads=("W_ref", "Y", "logp_actor")), "`ref_inf`.*not 2"),
    "not tokens": (
        with_vertex(problem(), "ref_inf", reads=("W_ref", "logp_actor")),
        "`logp_actor`, which no gener",
    ),
    "no reward": (
        with_vertex(problem(), "actor_train", reads=("W_actor", "Y", "logp_actor", "logp_ref", "v")),
        "`actor_train`.*exactly one container of rewards among the inputs to be trained by PPO, not 0",
    ),
    "no behaviour": (
        with_vertex(problem(), "actor_train", reads=("W_actor", "Y", "logp_ref", "r", "v")),
        "`actor_train`.*log-probabilities of the generating version",
    ),
    "sampling without a vocabulary": (
        with_vertex(problem(), "actor_gen", model="critic"),
        "no vocabulary head",
    ),
    "continuing": (
        with_vertex(problem(), "actor_gen", reads=("W_actor", "r")),
        "`actor_gen`.*continues `r` of `reward_inf`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_refused_by_name(name: str) -> None:
    made, words = REFUSED[name]
    with pytest.raises(NotUnderstood, match=words):
        understand(made)


def test_a_wrong_size_is_refused() -> None:
    made = problem()
    sizes = [replace(c, elements=7) if c.name == "logp_ref" else c for c in made.graph.containers]
    with pytest.raises(
        NotUnderstood, match="`logp_ref` with 7 elements where logprobs of this workload have 64"
    ):
        understand(replace(made, graph=replace(made.graph, containers=tuple(sizes))))


def test_two_rewards_are_refused() -> None:
    made = problem()
    second = Vertex(name="judge", role="inference", model=None, reads=("Y",), writes=("r2",))
    graph = replace(
        made.graph,
        vertices=(*made.graph.vertices, second),
        data_edges=(
            *made.graph.data_edges,
            Edge("actor_gen", "judge", "Y"),
            Edge("judge", "actor_train", "r2"),
        ),
        containers=(*made.graph.containers, replace(made.graph.containers[-1], name="r2")),
    )
    made = with_vertex(
        replace(made, graph=graph),
        "actor_train",
        reads=("W_actor", "Y", "logp_actor", "logp_ref", "r", "r2", "v"),
    )
    with pytest.raises(NotUnderstood, match=r"`actor_train`.*not 2 \(`r`, `r2`\)"):
        understand(made)


ROOM = Machine(slots=None, memory_bytes=None)


def missing(made: Problem, plan: dict[str, Any], machine: Machine = ROOM) -> str:
    with pytest.raises(PreflightError) as caught:
        check(executable(made, plan), machine)
    return str(caught.value)


def test_a_plan_that_fits_passes() -> None:
    made = executable(problem(), colocated(dp=4))
    assert check(made, ROOM).world == 4
    assert check(made, Machine(slots=4, memory_bytes=1 << 40)).devices == ["0.0.0", "0.0.1", "0.0.2", "0.0.3"]


def test_only_used_gpus_need_a_worker() -> None:
    plan = dict.fromkeys(VERTICES, place("1")) | {"critic_train": place("3")}
    assert check(executable(problem(), plan), Machine(slots=2, memory_bytes=None)).devices == [
        "0.0.1",
        "0.0.3",
    ]


def test_what_is_missing_is_said() -> None:
    assert "4 GPUs" in missing(problem(), colocated(dp=4), Machine(slots=3, memory_bytes=None))
    text = missing(problem(), colocated(dp=4), Machine(slots=4, memory_bytes=1 << 30))
    assert "GiB of memory on this machine (4 workers" in text
    assert "1.0 GiB are available" in text
    assert "`run` section" in missing(replace(problem(), run=None), colocated())
    made = problem()
    odd = replace(made.models["actor"], activation="gelu")
    text = missing(replace(made, models=made.models | {"actor": odd}), colocated())
    assert "vertex `actor_gen`, model `actor`" in text
    assert "gelu" in text
    printed = replace(made, options=replace(made.options, as_printed=True))
    assert "--as-printed" in missing(printed, colocated())
