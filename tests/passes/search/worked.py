"""The worked cases as configurations, and small problems made from them."""

import json
from pathlib import Path

import msgspec

from ir_schema.problem import Placement, Problem, SearchSpace
from ir_schema.stages import Configuration
from rpegc.models import load_model

CASES = sorted((Path(__file__).parents[2] / "cases").glob("*/*.json"))


def read_case(path: Path) -> Configuration:
    raw = json.loads(path.read_text())
    raw.pop("fields"), raw.pop("expected")
    problem = msgspec.convert(raw, Problem)
    plan = {v: msgspec.convert(msgspec.to_builtins(p), Placement) for v, p in problem.plan.items()}
    return Configuration(problem=msgspec.structs.replace(problem, plan={}), plan=plan)


def case(name: str) -> Configuration:
    """The decided case whose file name starts with `name`."""
    return next(read_case(p) for p in CASES if p.parent.name == "decided" and p.stem.startswith(name))


def ppo(space=(1, 2, 4), *, cost_model="paper", search: SearchSpace | None = None, **workload) -> Problem:
    """Synchronous PPO with four 7B models and nothing planned."""
    problem = case("01").problem
    return msgspec.structs.replace(
        problem,
        device_space=space,
        workload=msgspec.structs.replace(problem.workload, **workload),
        options=msgspec.structs.replace(problem.options, cost_model=cost_model),
        search=search,
    )


def mixture(length: int, cost_model: str = "megatron") -> Problem:
    """PPO of a mixture of experts on two nodes of 8, with responses of `length` tokens."""
    problem = ppo((1, 2, 8), cost_model=cost_model, response_length=length, length_quantiles=())
    models = {m: load_model("qwen3-30b-a3b", s.head) for m, s in problem.models.items()}
    return msgspec.structs.replace(problem, models=models)
