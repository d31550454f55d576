"""What is refused before anything is loaded: plans with a right hash and wrong values."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ir_schema.envelope import encode_stage
from ir_schema.model import Experts
from ir_schema.stages import Executable
from rpeg_rt.cli import main
from rpeg_rt.controller import Controller
from rpeg_rt.failure import ExitCode, InterruptedRunError
from rpeg_rt.host import Host
from rpeg_rt.judge import Judge
from tests.rpeg_rt.plans import executable, place, problem, trained, write_prompts

Path_ = tuple[str | int, ...]
STARTED = int(ExitCode.INTERRUPTED)


def body() -> Any:
    """A plan with transfers of rows and weights, phases, staleness, fused training and a mixture of experts,
    as JSON."""
    made = problem(
        staleness=1,
        quantiles=((0.5, 4), (1.0, 8)),
        fuse=True,
        run={"optimizers": {"critic": problem().run.optimizer}},  # type: ignore[union-attr]
    )
    mixture = msgspec.structs.replace(made.models["reference"], experts=Experts(routed=4, top_k=2, ffn=8))
    made = msgspec.structs.replace(made, models={**made.models, "reference": mixture})
    both = place("0-1", dp=2)
    plan = trained("0-1", pp=2, mb=(2, 2)) | {"actor_gen": both, "critic_inf": both, "ref_inf": place("2")}
    return json.loads(msgspec.json.encode(executable(made, plan)))


BODY = body()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("plans")
    write_prompts(found)
    return found


@pytest.fixture
def outcome(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Any], tuple[int, str] | None]:
    """What `rpeg-rt` says of a plan, up to where it would start workers (STARTED); None for one that cannot
    be written, as it is none by its types."""

    def start(controller: Controller, host: Callable[..., Host]) -> None:
        host(lambda _: None).close()
        raise InterruptedRunError(2)

    monkeypatch.setattr(Controller, "run", start)
    monkeypatch.setattr(Judge, "start", lambda _: None)  # loading verifiers is tested with them

    def of(plan: Any) -> tuple[int, str] | None:
        try:
            decoded = msgspec.json.decode(json.dumps(plan).encode(), type=Executable)
            data = encode_stage(decoded)
        except (msgspec.DecodeError, ValueError, OverflowError):
            return None
        path = directory / "plan.exe.json"
        path.write_bytes(data)
        return main([str(path), "--steps", "2"]), capsys.readouterr().err

    return of


def changed(path: Path_, value: Any) -> Any:
    """The plan with another value at `path`."""
    plan = json.loads(json.dumps(BODY))
    at = plan
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return plan


def test_the_plan_itself_would_start(outcome: Callable[[Any], tuple[int, str] | None]) -> None:
    assert outcome(BODY) == (STARTED, "error: interrupted by SIGINT\nrpeg-rt: exit code 130 (interrupted)\n")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("problem.workload.prompts", -4, "`workload.prompts` is -4; it must be at least 1"),
        (
            "problem.workload.response_length",
            2**40,
            "`workload.response_length` is 10995",
        ),
        ("problem.workload.length_quantiles.0.1", 9, "`workload.length_quantiles` must ascend"),
        ("problem.models.actor.layers", 0, "`models.actor.layers` is 0; it must be at least 1"),
        ("problem.models.actor.layers", 3, "3 layers do not divide into 2 pipeline stages"),
        ("problem.models.actor.hidden", 18, "width 18 does not divide over 4 attention heads"),
        ("problem.models.actor.kv_heads", 3, "4 attention heads do not divide into 3 key/value heads"),
        ("problem.models.actor.vocabulary", 100, "model `actor` has 100 tokens, but the tokenizer produces"),
        (
            "problem.models.critic.rope_theta",
            -1.0,
            "`models.critic.rope_theta` is -1.0; it",
        ),
        ("problem.models.reference.experts.routed", 0, "`models.reference.experts.routed` is 0; it must be"),
        ("problem.models.reference.experts.top_k", 5, "`models.reference.experts.top_k` is 5 of 4 experts"),
        ("problem.models.reference.experts.every", 0, "`models.reference.experts.every` is 0; it must be"),
        ("problem.models.reference.experts.skew", 0.5, "`models.reference.experts.skew` is 0.5; it must be"),
        ("problem.run.steps", 0, "`run.steps` is 0"),
        ("problem.run.top_p", 1.5, "`run.top_p` is 1.5; it must be more than 0 and at most 1"),
        ("problem.run.temperature", 0.0, "`run.temperature` is 0.0; it must be more than 0"),
        (
            "problem.run.optimizer.beta1",
            1.0,
            "must be at least 0 and less than 1",
        ),
        (
            "problem.run.optimizers.critic.learning_rate",
            -1.0,
            "`run.optimizers.critic.learning_rate` is",
        ),
        ("problem.host.reward_inf.workers", 0, "`host.reward_inf.workers` is 0; it must be from 1 to 4096"),
        ("problem.host", {}, "`graph.vertices` names verifier `reward_inf`, which the plan does not have"),
        ("problem.graph.vertices.0.model", "nobody", "vertex `actor_gen` names model `nobody`"),
        ("problem.graph.vertices.0.reads.1", "Z", "vertex `actor_gen` names container `Z`"),
        ("problem.graph.staleness.actor", -1, "`graph.staleness.actor` is -1; it must be from 0"),
        ("problem.graph.containers.4.elements", 7, "must have exactly one container of tokens"),
        ("problem.device_space", [1, 1, 0], "`device_space` is [1, 1, 0]"),
        (
            "plan.ref_inf.origin",
            [0, 0, 9],
            "`plan.ref_inf` lies at [0, 0, 9]+[1, 1, 1]",
        ),
        ("plan.actor_gen.data_parallel", 3, "is not where the plan places `actor_gen`, or not in its layout"),
        (
            "plan.actor_gen.extent",
            [1, 1, 2**62],
            "outside of the machine of [1, 1, 4] GPUs",
        ),
        ("template.0.phases", 0, "template node 0.phases` is 0"),
        (
            "template.0.allocation.extent",
            [1, 1, 1],
            "is not where the plan places `actor_gen`",
        ),
        ("template.3.edges.0.distance", 10**9, "`template node 3.distance` is 1000000000"),
    ],
)
def test_what_cannot_be_is_told(
    outcome: Callable[[Any], tuple[int, str] | None], path: str, value: Any, told: str
) -> None:
    found = outcome(changed(tuple(int(k) if k.isdecimal() else k for k in path.split(".")), value))
    assert found is not None
    code, text = found
    assert code == 3, text
    assert told in text


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """All values of a plan, and where they are; not what only the compiler reads."""
    yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        if (*path, key) not in (("prediction",), ("problem", "hardware")):
            yield from leaves(below, (*path, key))


def others(value: Any) -> list[Any]:
    """Values to be put in the place of one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [0, -1, value + 1, value - 1, 10**6, 2**62]
    if isinstance(value, float):
        return [0.0, -1.0, 1e300, value * 3, 0.5]
    if isinstance(value, str):
        return ["", "nonsense", "actor_gen"]
    if isinstance(value, list):
        return [[], value[1:], value + value[-1:], value[::-1]]
    if isinstance(value, dict):
        return [{}, dict(list(value.items())[1:])]
    return [0, -1, "nonsense"]


def mutants(seed: int, most: int | None) -> list[tuple[Path_, Any]]:
    """Places and their new values, in random order."""
    found = [(path, new) for path, old in leaves(BODY) if path for new in others(old) if new != old]
    random.Random(seed).shuffle(found)
    return found[:most]


@pytest.mark.parametrize(
    "most", [pytest.param(60, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)]
)
def test_whatever_a_plan_says_there_is_a_clear_answer(
    outcome: Callable[[Any], tuple[int, str] | None], most: int | None
) -> None:
    codes: dict[int, int] = {}
    for path, new in mutants(0, most):
        found = outcome(changed(path, new))  # an exception fails the test
        if found is None:
            continue
        code, text = found
        assert code in (2, 3, 6, STARTED), (path, new, text)
        assert text.splitlines()[-1].startswith(f"rpeg-rt: exit code {code}"), (path, new, text)
        codes[code] = codes.get(code, 0) + 1
    assert codes[3] > codes[STARTED] > 0
