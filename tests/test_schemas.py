"""The kept JSON Schemas are those of the types, and what is written satisfies them."""

import json
from pathlib import Path

import jsonschema
import pytest

from ir_schema.envelope import STAGES, encode_stage
from ir_schema.jsonschema import DIRECTORY, stage_schema
from ir_schema.problem import Problem
from rpegc.driver import input_run, run_pipeline
from rpegc.pipeline import Pipeline
from tests.rpegc.conftest import CASES, case_problem
from tests.rpegc.fakes import Plan


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


@pytest.mark.parametrize("path", sorted(CASES.glob("*/*.json")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_stage_of_the_cases_satisfies_its_schema(path: Path) -> None:
    problem = case_problem(path)
    assert isinstance(problem, Problem)
    pipeline = Pipeline((Plan(),))
    for run in run_pipeline(pipeline, input_run(problem)):
        validator(run.name).validate(json.loads(run.encode()))
