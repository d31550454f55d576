"""The envelope: identity is content, and nothing that was changed is accepted."""

import json

import msgspec
import pytest

from ir_schema.diagnostics import DiagnosticError
from ir_schema.envelope import canonical, decode_stage, encode_stage, identify, pretty
from ir_schema.problem import Options, Problem, Workload
from tests.passes.test_cases import CASES, load

PROBLEM = load(CASES / "decided" / "09-dpo-sync-colocated-reshard.json")[0].problem


def test_a_written_default_gives_the_id_of_one_that_was_left_out():
    tree = msgspec.to_builtins(PROBLEM)
    tree["hardware"]["runtime_reserve"] = float("0.1")
    tree["models"]["actor"]["rope_theta"] = float("10000.0")
    again = msgspec.json.decode(json.dumps(tree).encode(), type=Problem)
    assert again == PROBLEM
    assert identify(again) == identify(PROBLEM)
    assert encode_stage(again) == encode_stage(PROBLEM)


def test_canonical_bytes_are_sorted_and_stable():
    assert canonical({"b": 1, "a": 0.1}) == b'{"a":0.1,"b":1}'
    assert pretty(Options()).endswith(b"}\n")
    workload = Workload(prompts=1, rollouts=1, prompt_length=1, response_length=1, epochs=int("1"))
    assert b"epochs" not in canonical(workload)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused(value):
    broken = msgspec.structs.replace(
        PROBLEM, hardware=msgspec.structs.replace(PROBLEM.hardware, peak_flops=value)
    )
    with pytest.raises(ValueError, match=r"peak_flops|survive"):
        encode_stage(broken)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d.replace(b'"prompts": ', b'"prompts": 1'), "E904"),
        (lambda d: d.replace(b'"rpeg.problem"', b'"rpeg.plan"'), "E902"),
        (lambda d: d.replace(b'"version": 1', b'"version": 99'), "E902"),
        (lambda d: d.replace(b'"prompts": ', b'"prompt": '), "E903"),
        (lambda d: d[:-20], "E901"),
        (lambda d: b"[]", "E901"),
    ],
)
def test_changed_files_are_refused(change, code):
    data = encode_stage(PROBLEM)
    assert decode_stage(data)[1] == PROBLEM
    with pytest.raises(DiagnosticError) as caught:
        decode_stage(change(data))
    assert [d.code for d in caught.value.diagnostics] == [code]
