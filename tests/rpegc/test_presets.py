"""Presets give the graphs of the worked cases, and say what they cannot use."""

from pathlib import Path

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import Problem
from rpegc.frontend import format_text, load
from rpegc.presets import PRESETS
from rpegc.text import tree
from rpegc.text.compose import compose
from rpegc.text.printer import print_file

ROOT = Path(__file__).parents[2]

CASES = ROOT / "tests/cases"
HERE = Path()

USE = {
    "ppo": "use ppo { actor = actor, critic = critic, reference = ref, reward = reward }",
    "ppo_shared": "use ppo_shared { actor_critic = actor_critic, reference = ref, reward = reward }",
    "grpo": "use grpo { actor = actor, reference = ref, reward = reward }",
    "dpo": "use dpo { actor = actor, reference = ref }",
}

MODELS = """
  model actor : lm { arch = "tiny", trainable = true }
  model critic : scalar { arch = "tiny", trainable = true }
  model both : both { arch = "tiny", trainable = true }
  model ref : lm { arch = "tiny" }
  model reward : scalar { arch = "tiny" }
"""


def case(name: str) -> Problem:
    value = msgspec.json.decode((CASES / f"{name}.json").read_bytes())
    value.pop("expected")
    return load(msgspec.json.encode(value), name, HERE).problem


def with_preset(problem: Problem, preset: str) -> str:
    """The text of `problem` with its graph replaced by a preset."""
    kept = [
        s
        for s in compose(problem).statements
        if s.keyword not in ("container", "op", "data", "publish", "input", "output")
    ]
    text = print_file(tree.File(tree.Word(problem.name), tuple(kept)))
    return text.rstrip("}\n") + "  }\n  " + USE[preset] + "\n}\n"


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("decided/01-ppo-sync-colocated-one-layout", "ppo"),
        ("decided/04-ppo-async-tau2-tau1", "ppo"),
        ("decided/06-grpo-async-pipeline-two-racks", "grpo"),
        ("decided/09-dpo-sync-colocated-reshard", "dpo"),
        ("decided/11-shared-sync-disjoint-serving", "ppo_shared"),
        ("printed/01-ppo-sync-colocated-one-layout", "ppo"),
        ("printed/06-grpo-async-pipeline-two-racks", "grpo"),
        ("printed/11-shared-sync-disjoint-serving", "ppo_shared"),
    ],
)
def test_presets_reproduce_the_cases(name: str, preset: str) -> None:
    problem = case(name)
    text = with_preset(problem, preset)
    assert load(text.encode(), "p.rpeg", HERE).problem == problem
    expanded = format_text(text.encode(), "p.rpeg", expand=True)
    assert "use " not in expanded
    assert load(expanded.encode(), "p.rpeg", HERE).problem == problem


def small(*statements: str, rollouts: int | str = 2) -> bytes:
    body = "\n".join(statements)
    return f"""rpeg 1
graph g {{
  options {{ cost_model = "paper" }}
  cluster {{ hardware = "h100", racks = 1, nodes = 1, gpus = 8 }}
  workload {{ prompts = 8, rollouts = {rollouts}, prompt_length = 4, response_length = 4 }}
{body}
}}
""".encode()


def problem_of(*statements: str) -> Problem:
    return load(small(*statements), "p.rpeg", HERE).problem


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_choose_the_algorithm_unless_told(preset: str) -> None:
    names = {"actor_critic": "both", "reference": "ref"}
    roles = ", ".join(f"{role} = {names.get(role, role)}" for role in PRESETS[preset].roles)
    use = f"use {preset} {{ {roles} }}"
    run = problem_of(MODELS, use, "run { steps = 3 }").run
    assert run is not None
    assert run.algorithm == PRESETS[preset].algorithm
    assert problem_of(MODELS, use).run is None
    told = problem_of(MODELS, use, "run { algorithm = reinforce }").run
    assert told is not None
    assert told.algorithm == "reinforce"


def test_a_verifier_as_reward_is_a_host_vertex() -> None:
    verifier = 'verifier exact { seconds_per_response = 0.5, workers = 4, callable = "a:b" }'
    use = "use grpo { actor = actor, reference = ref, reward = exact }"
    problem = problem_of(MODELS, verifier, use)
    (vertex,) = [v for v in problem.graph.vertices if v.name == "reward_inf"]
    assert vertex.model is None
    assert vertex.reads == ("Y",)
    assert problem.host["reward_inf"].seconds_per_response == 0.5
    assert problem.graph.inputs == ("X", "W_ref")
    assert "W_reward" not in {c.name for c in problem.graph.containers}


def test_one_model_may_play_two_frozen_roles() -> None:
    use = "use grpo { actor = actor, reference = ref, reward = ref }"
    with pytest.raises(DiagnosticError) as caught:
        problem_of(MODELS, use)
    assert [d.code for d in caught.value.diagnostics] == ["E157"]


@pytest.mark.parametrize(
    ("use", "codes"),
    [
        ("use pppo { actor = actor }", ["E154"]),
        ("use grpo { actor = actor, reference = ref }", ["E156"]),
        ("use grpo { actor = actor, reference = ref, reward = reward, critic = critic }", ["E156"]),
        ("use grpo { actor = actor, reference = reff, reward = reward }", ["E156"]),
        ("use grpo { actor = actor, actor = actor, reference = ref, reward = reward }", ["E013"]),
        ("use grpo { actor = actor, reference = critic, reward = reward }", ["E157"]),
        ("use grpo { actor = ref, reference = ref, reward = reward }", ["E157"]),
        ("use grpo { actor = 3, reference = [ref], reward = {} }", ["E156", "E156", "E156"]),
    ],
)
def test_unsuited_roles_are_reported(use: str, codes: list[str]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        problem_of(MODELS, use)
    assert [d.code for d in caught.value.diagnostics] == codes


@pytest.mark.parametrize("rollouts", [4, "1 + 2"])
def test_dpo_needs_pairs(rollouts: int | str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        load(small(MODELS, "use dpo { actor = actor, reference = ref }", rollouts=rollouts), "p", HERE)
    (found,) = caught.value.diagnostics
    assert found.code == "E250"
    assert len(found.labels) == 2


def test_places_of_an_expansion_are_those_of_the_use_statement() -> None:
    data = small(MODELS, "  use grpo { actor = actor, reference = ref, reward = reward }")
    loaded = load(data, "p.rpeg", HERE)
    span = loaded.source_map["graph.vertices[3].reads[2]"]
    assert loaded.text[span.start : span.end] == "use grpo"


def test_comments_at_a_use_statement_survive_expansion() -> None:
    data = small(MODELS, "# why", USE["grpo"] + "  # because")
    text = format_text(data, "p.rpeg", expand=True)
    assert "# why\n  # because\n  container W_actor" in text
