"""Loading problems: findings with places, overrides, both forms and stage files."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import encode_stage, identify
from rpegc.frontend import Loaded, format_json, format_text, load

ROOT = Path(__file__).parents[2]

HERE = Path()
CASE = ROOT / "tests/cases/decided/01-ppo-sync-colocated-one-layout.json"

TEXT = """rpeg 1
graph g {
  cluster { hardware = "h100", racks = 1, nodes = 2, gpus = 8 }
  workload { prompts = 8, rollouts = 2, prompt_length = 4, response_length = 4 }
  model actor : lm { arch = "tiny", trainable = true, staleness = 1, layers = 6 }
  model ref : lm { arch = "tiny" }
  model judge : scalar { arch = "tiny" }
  use grpo { actor = actor, reference = ref, reward = judge }
  plan actor_gen { tensor_parallel = 2 }
  search { staleness = { actor = [0, 1] } }
}
"""


def case_value() -> dict[str, object]:
    value: dict[str, object] = msgspec.json.decode(CASE.read_bytes())
    del value["expected"]
    return value


def load_json(value: object) -> Loaded:
    return load(msgspec.json.format(msgspec.json.encode(value), indent=1), "p.json", HERE)


def findings(data: bytes) -> list[tuple[str, str]]:
    """(code, first labelled text) of every finding."""
    with pytest.raises(DiagnosticError) as caught:
        load(data, "p", HERE)
    text = data.decode()
    spans = [(d.code, d.labels[0].span) for d in caught.value.diagnostics]
    return [(code, text[span.start : span.end] if span else "") for code, span in spans]


def changed(old: str, new: str) -> bytes:
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("workload.prompts", "8"),
        ("models.actor", "model actor : lm"),
        ("models.actor.layers", "6"),
        ("models.actor.head", "lm"),
        ("graph.staleness.actor", "1"),
        ("graph.trainable[0]", "model actor : lm"),
        ("graph.data_edges[1]", "use grpo"),
        ("plan.actor_gen.tensor_parallel", "2"),
        ("search.staleness.actor", "[0, 1]"),
        ("search.staleness.actor[1]", "1"),
        ("hardware", '"h100"'),
        ("device_space[1]", "2"),
    ],
)
def test_paths_lead_into_the_text(path: str, text: str) -> None:
    loaded = load(TEXT.encode(), "p.rpeg", HERE)
    span = loaded.source_map[path]
    assert loaded.text[span.start : span.end] == text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("workload.prompts", "128"),
        ("models.critic", '"critic"'),
        ("graph.vertices[2].reads[1]", '"Y"'),
        ("graph.vertices[2]", '"name": "reward_inf"'),
        ("graph.data_edges[3][2]", '"logp_ref"'),
        ("plan.actor_gen.tensor_parallel", "2"),
    ],
)
def test_paths_lead_into_json(path: str, text: str) -> None:
    loaded = load_json(case_value())
    span = loaded.source_map[path]
    assert loaded.text[span.start : span.end] == text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (changed('"h100"', '"h10"'), [("E310", '"h10"')]),
        (changed('arch = "tiny", trainable', 'arch = "tinny", trainable'), [("E320", '"tinny"')]),
        (changed("prompts = 8", "promts = 8"), [("E011", "promts")]),
        (changed("prompts = 8, ", ""), [("E012", "workload")]),
        (changed("prompts = 8", 'prompts = "8"'), [("E014", '"8"')]),
        (changed("prompts = 8", "prompts = 8, prompts = 9"), [("E013", "prompts")]),
        (changed("actor : lm", "actor : llm"), [("E014", "llm")]),
        (changed("tensor_parallel", "tp"), [("E011", "tp")]),
        (changed("model ref", "model actor"), [("E013", "model actor : lm"), ("E156", "ref")]),
        (changed("search {", "search { objective = fast,"), [("E014", "fast")]),
        (changed("search {", "workload { }\n search {"), [("E013", "workload")]),
        (changed("search {", "verifier v { seconds_per_response = 1 }\n search {"), [("E153", "verifier v")]),
        (
            changed("search {", "op x : inference { verifier = v, reads = [], writes = [] }\nsearch {"),
            [("E152", "v")],
        ),
        (
            changed("search {", "container c { elements = 7 / 2, bytes_each = 4 }\nsearch {"),
            [("E016", "7 / 2")],
        ),
        (
            changed("search {", "container c { elements = 1 / 0, bytes_each = 4 }\nsearch {"),
            [("E016", "1 / 0")],
        ),
        (
            changed("search {", "container c { elements = size, bytes_each = 4 }\nsearch {"),
            [("E155", "size")],
        ),
        (changed("search {", "container c { elements = f(ref), bytes_each = 4 }\nsearch {"), [("E155", "f")]),
        (
            changed("search {", "container c { elements = parameters(x), bytes_each = 4 }\nsearch {"),
            [("E151", "x")],
        ),
        (
            changed("search {", "container c { elements = 99999999999999999999, bytes_each = 4 }\nsearch {"),
            [("E016", "99999999999999999999")],
        ),
        (b"rpeg 1\ngraph g { }", [("E012", "g"), ("E012", "g")]),
        (b'{"options": }', [("E010", "}")]),
        (b'{"a":' * 40 + b"1" + b"}" * 40, [("E009", "{")]),
    ],
)
def test_findings_point_at_the_fault(data: bytes, expected: list[tuple[str, str]]) -> None:
    assert findings(data) == expected


def test_an_unknown_cost_model_is_reported_once() -> None:
    data = changed("search {", 'options { cost_model = "megatorn" }\n search {')
    assert findings(data) == [("E301", '"megatorn"')]


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(DiagnosticError) as caught:
        load(b"rpeg 1\n\xe9", "p", HERE)
    (found,) = caught.value.diagnostics
    assert found.code == "E001"
    assert found.labels[0].span is not None
    assert found.labels[0].span.start == 7


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("expected", {}, "E011"),
        ("workload", None, "E014"),
        ("device_space", [1, 2], "E014"),
        ("device_space", [1, 2, "4"], "E014"),
        ("graph", {}, "E012"),
        ("models", {"a": 3}, "E014"),
    ],
)
def test_json_of_the_wrong_shape(key: str, value: object, code: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        load_json(case_value() | {key: value})
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.labels[0].span is not None


def test_duplicate_json_keys_are_refused() -> None:
    data = msgspec.json.encode(case_value())
    assert findings(data[:-1] + b',"name":"again"}') == [("E013", '"name"')]


def test_the_legend_of_a_case_is_no_part_of_the_problem() -> None:
    with_legend, without = case_value(), case_value()
    del without["fields"]
    assert load_json(with_legend).problem == load_json(without).problem


def test_a_problem_stage_file_is_a_problem() -> None:
    problem = load(TEXT.encode(), "p.rpeg", HERE).problem
    loaded = load(encode_stage(problem), "p.problem.json", HERE)
    assert loaded.problem == problem
    assert loaded.parent == identify(problem)
    span = loaded.source_map["workload.prompts"]
    assert loaded.text[span.start : span.end] == "8"


def test_a_written_default_changes_no_byte() -> None:
    plain = load(TEXT.encode(), "p", HERE).problem
    spelt = load(changed("prompts = 8", "prompts = 8, epochs = 1"), "p", HERE).problem
    assert identify(plain) == identify(spelt)
    assert identify(load(encode_stage(spelt), "p", HERE).problem) == identify(plain)


def test_options_override_before_sizes_are_computed() -> None:
    data = TEXT.replace('"tiny"', '"llama-2-7b"').encode()
    plain = load(data, "p", HERE).problem
    printed = load(data, "p", HERE, {"as_printed": True}).problem
    assert (plain.options.cost_model, printed.options.cost_model) == ("megatron", "paper")
    sizes = {c.name: c for c in printed.graph.containers}
    assert sizes["Y"].bytes_each == 2
    assert sizes["W_actor"].elements != {c.name: c for c in plain.graph.containers}["W_actor"].elements


def test_the_printed_form_has_the_printed_cost_model_unless_named() -> None:
    printed = changed("search {", "options { as_printed = true }\n search {")
    named = changed("search {", "options { as_printed = true, cost_model = megatron }\n search {")
    assert load(printed, "p", HERE).problem.options.cost_model == "paper"
    assert load(named, "p", HERE).problem.options.cost_model == "megatron"


def test_text_to_json_and_back() -> None:
    data = format_json(TEXT.encode(), "p.rpeg", HERE)
    assert load(data, "p.json", HERE).problem == load(TEXT.encode(), "p.rpeg", HERE).problem
    again = format_json(format_text(data, "p.json").encode(), "p.rpeg", HERE)
    assert again == data


def test_formatting_asks_nothing_of_names() -> None:
    data = changed('"h100"', '"nowhere"')
    assert 'hardware = "nowhere"' in format_text(data, "p.rpeg")


def test_an_inline_machine_and_a_config_file(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
    }
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    data = changed('arch = "tiny", trainable', 'arch = "./config.json", trainable')
    problem = load(data, "p.rpeg", tmp_path).problem
    assert (problem.models["actor"].hidden, problem.models["actor"].layers) == (64, 6)


def test_reading_text_imports_nothing_heavy() -> None:
    code = (
        "import sys, rpegc.frontend, rpegc.text.parser, rpegc.presets, rpegc.diagnostics;"
        "print([m for m in ('torch', 'networkx', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("graph", None, "expected an object, found `null`"),
        ("workload", [], "expected an object, found a list"),
        ("name", None, "expected a string, found `null`"),
        ("name", {}, "expected a string, found an object"),
    ],
)
def test_json_is_spoken_of_as_json(key: str, value: object, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        load_json(case_value() | {key: value})
    assert [found.message for found in caught.value.diagnostics] == [message]
