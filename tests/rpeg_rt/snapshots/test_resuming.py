"""What a run begins with that goes on from a snapshot, and which plans cannot."""

from typing import Any

import msgspec
import pytest

from ir_schema.problem import Optimizer, Problem
from rpeg_rt.beginning import Beginning
from rpeg_rt.realise import Realisation
from rpeg_rt.snapshots.contents import places_of
from rpeg_rt.snapshots.manifest import VERSION, Manifest, Trained, settings
from rpeg_rt.snapshots.resuming import beginning, differences
from tests.rpeg_rt.plans import colocated, executable, place, problem, without_critic

replace = msgspec.structs.replace
APART = colocated(dp=2) | {"actor_train": place("2-3", tp=2), "critic_train": place("3")}


def snapshot(of: Problem, step: int = 5, versions: tuple[int, ...] = (5,)) -> Manifest:
    return Manifest(
        version=VERSION,
        step=step,
        plan="p",
        seed=0,
        settings=settings(of),
        models={m: Trained(versions=versions, updates=step) for m in of.graph.trainable},
        memory={},
        files={},
    )


def changed(section: str, **values: Any) -> Problem:
    made = problem()
    return replace(made, **{section: replace(getattr(made, section), **values)})


def wider() -> Problem:
    made = problem()
    return replace(made, models=made.models | {"actor": replace(made.models["actor"], ffn=64)})


@pytest.mark.parametrize(
    ("now", "refused"),
    [
        (changed("run", algorithm="grpo"), "`run.algorithm` was ppo and is grpo"),
        (changed("run", precision="float32"), "`run.precision` was float64 and is float32"),
        (changed("workload", prompts=8), "`workload.prompts` was 4 and is 8"),
        (wider(), "`models.actor.ffn` was 32 and is 64"),
    ],
)
def test_a_run_of_something_else_is_refused(now: Problem, refused: str) -> None:
    assert differences(snapshot(problem()), now, 0)[0] == [refused]


def test_another_graph_or_seed_is_refused() -> None:
    refused, _ = differences(snapshot(problem()), without_critic(problem()), 0)
    assert any(text.startswith("`trainable` was") for text in refused)
    assert differences(snapshot(problem()), problem(), 1)[0] == ["`run.seed` was 0 and is 1"]


def test_what_may_change_is_told() -> None:
    now = changed("run", optimizer=Optimizer(learning_rate=5e-4), steps=9)
    told = "`run.optimizer.learning_rate` was 0.001 and is 0.0005"
    assert differences(snapshot(problem()), now, 0) == ([], [told])
    assert differences(snapshot(problem()), problem(staleness=2, device_space=(1, 1, 2)), 0) == ([], [])


@pytest.mark.parametrize(("versions", "oldest"), [((5,), 5), ((3, 4, 5), 3), ((2, 4, 5), 4)])
def test_versions_are_there_up_to_the_first_gap(versions: tuple[int, ...], oldest: int) -> None:
    found = beginning(snapshot(problem(), versions=versions))
    assert found == Beginning(5, {"actor": oldest, "critic": oldest})


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_every_version_that_is_read_is_there_or_installed_before(staleness: int, held: int) -> None:
    """Under another staleness than that of the run before, `held` versions behind: an old version that is not
    there is replaced by the oldest that is, which is no more behind than the plan allows."""
    begins = Beginning(5, {"actor": 5 - held, "critic": 5 - held})
    realisation = Realisation(executable(problem(staleness=staleness), APART), begins)
    versions = {p: list(realisation.first_versions(p)) for p in realisation.places()}
    for step in range(5, 12):
        nodes = list(realisation.bound.values())
        transfers = [b for b in nodes if b.transfer is not None and b.node.first_step <= step]
        serving = [b for b in nodes if b.node.kind == "Op" and not b.on_host and "train" not in b.node.vertex]

        def install(step: int = step, transfers: list[Any] = transfers) -> None:
            for b in transfers:
                version = realisation.transferred(b.transfer, step)
                assert version in versions[b.transfer.source]
                held_there = versions[b.transfer.target]
                held_there.append(version)
                del held_there[: -b.transfer.target.copies]

        def serve(step: int = step, serving: list[Any] = serving) -> None:
            for b in serving:
                for model, version in realisation.version(b.node, step).items():
                    assert version in versions[realisation.serving[b.node.vertex]]
                    assert model not in begins.oldest or 0 <= step - version <= staleness

        for act in (install, serve) if staleness == 0 else (serve, install):
            act()
        for b in nodes:
            if b.node.kind == "Op" and "train" in b.node.vertex:
                assert set(realisation.version(b.node, step).values()) == {step}
                versions[realisation.serving[b.node.vertex]] = [step + 1]
        if step + 1 >= 5 + staleness:
            wanted = tuple(range(step + 1 - staleness, step + 2))
            assert tuple(places_of(realisation, "actor", step + 1)) == wanted
