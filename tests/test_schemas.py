"""The kept JSON Schemas are those of the types, and what is written satisfies them."""

import json
from pathlib import Path

import jsonschema
import pytest

from ir_schema.base import Record
from ir_schema.envelope import STAGES, encode_stage, stage_name
from ir_schema.jsonschema import DIRECTORY, stage_schema
from passes.assemble import assemble
from passes.cost import cost
from passes.lower import lower
from passes.schedule import schedule
from passes.unroll import unroll
from tests.rpegc.conftest import CASES, case_problem, configured


def validator(stage: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((DIRECTORY / f"{stage}.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("stage", STAGES)
def test_kept_schema_is_current(stage: str) -> None:
    kept = DIRECTORY / f"{stage}.json"
    assert kept.read_bytes() == stage_schema(stage), "run `python -m ir_schema.jsonschema`"


def test_no_schema_without_a_stage() -> None:
    assert {p.stem for p in DIRECTORY.glob("*.json")} == set(STAGES)


def test_a_wrong_file_does_not_satisfy_its_schema() -> None:
    problem = case_problem(CASES / "decided" / "01-ppo-sync-colocated-one-layout.json")
    good = json.loads(encode_stage(problem))
    assert validator("problem").is_valid(good)
    assert not validator("configuration").is_valid(good)
    del good["body"]["workload"]["prompts"]
    assert not validator("problem").is_valid(good)


@pytest.mark.parametrize("path", sorted(CASES.glob("decided/0[139]*.json")), ids=lambda p: p.stem)
def test_every_stage_of_the_cases_satisfies_its_schema(path: Path) -> None:
    problem = case_problem(path)
    stages: list[Record] = [problem, configured(problem)]
    stages.append(unroll(stages[1]))
    stages.append(lower(stages[2]))
    stages.append(cost(stages[3]))
    stages.append(schedule(stages[4]))
    stages.append(assemble(stages[5]))
    assert [stage_name(s) for s in stages] == list(STAGES)
    for stage in stages:
        validator(stage_name(stage)).validate(json.loads(encode_stage(stage)))
