"""A PPO problem under cost model `megatron`, and placements on it."""

import msgspec

from calib.hardware import load_hardware
from ir_schema.model import ModelSpec
from ir_schema.problem import Options, Placement, Problem, Workload
from passes.cost.megatron import MegatronCost
from rpegc.models import load_model
from tests.passes.test_cases import CASES, load

GRAPH = load(CASES / "decided" / "03-ppo-async-disjoint-split.json")[0].problem.graph
HEADS = {"actor": "lm", "ref": "lm", "reward": "scalar", "critic": "scalar"}
QUANTILES = ((0.5, 256), (0.85, 512), (1.0, 1024))
WORKLOAD = Workload(
    prompts=128, rollouts=4, prompt_length=256, response_length=1024, length_quantiles=QUANTILES
)
NODE = 8
replace = msgspec.structs.replace


def problem(spec: str | ModelSpec = "llama-3.1-8b", *, tau: int = 0, hardware=None, **workload) -> Problem:
    """PPO on 4 nodes of 8 GPUs; keywords change the workload."""
    models = {
        m: load_model(spec, head) if isinstance(spec, str) else replace(spec, head=head)
        for m, head in HEADS.items()
    }
    return Problem(
        options=Options(),
        workload=replace(WORKLOAD, **workload),
        models=models,
        hardware=hardware or load_hardware("h100"),
        device_space=(1, 4, NODE),
        graph=replace(GRAPH, staleness=dict.fromkeys(GRAPH.trainable, tau)),
    )


def cost(*args, **kwargs) -> MegatronCost:
    return MegatronCost(problem(*args, **kwargs))


def vertex(model: MegatronCost, name: str):
    return next(v for v in model.problem.graph.vertices if v.name == name)


def place(dp=1, pp=1, tp=1, mb=1, *, cp=1, ep=1, waves=1, node=0) -> Placement:
    gpus = dp * pp * tp * cp
    return Placement(
        origin=(0, node, 0),
        extent=(1, 1, gpus) if gpus <= NODE else (1, gpus // NODE, NODE),
        data_parallel=dp,
        pipeline_parallel=pp,
        tensor_parallel=tp,
        microbatches=mb,
        context_parallel=cp,
        expert_parallel=ep,
        waves=waves,
    )


def seconds(model: MegatronCost, name: str, placement: Placement) -> float:
    return sum(model.operator(vertex(model, name), placement).values())
