import msgspec
import pytest

from benchmarks import scenarios
from ir_schema.device import size
from passes.cost import model_for


def test_the_36_cases_of_weak_scaling_are_different_problems():
    cases = list(scenarios.weak())
    assert len(cases) == 36
    assert len({str(labels) for labels, _ in cases}) == 36
    for labels, problem in cases:
        assert size(problem.device_space) == labels["gpus"]
        assert problem.workload.prompts == labels["prompts"]


@pytest.mark.parametrize("gpus", [64, 128, 256, 512, 1024, 2048])
def test_scaling_is_on_as_many_gpus_as_it_says(gpus):
    assert size(scenarios.scaling(gpus).device_space) == gpus


@pytest.mark.parametrize("billions", scenarios.ARCHITECTURE)
def test_models_are_as_large_as_they_are_called(billions):
    problem = scenarios.ppo("sized", (1, 2, 4), (billions, 7, 7), 512, (128, 128))
    counted = msgspec.structs.replace(
        problem, options=msgspec.structs.replace(problem.options, cost_model="megatron")
    )
    assert model_for(counted).parameters("actor") == pytest.approx(billions * 1e9, rel=0.05)


def test_problems_are_those_of_the_evaluation():
    for problem in (scenarios.ablation("DEEP"), scenarios.strong(8), scenarios.convergence(2048)):
        assert problem.options.cost_model == "paper"
        assert not problem.options.as_printed
        assert problem.options.steps == 8
        assert problem.graph.staleness == {"actor": 1, "critic": 1}
        lengths = problem.workload.response_length
        assert problem.workload.length_quantiles == (
            (0.5, lengths // 4),
            (0.85, lengths // 2),
            (1.0, lengths),
        )


def test_only_mem_tight_has_less_memory():
    tight = {name: scenarios.ablation(name).hardware.memory_bytes for name in scenarios.ABLATION}
    assert tight.pop("MEM-TIGHT") == 50e9
    assert set(tight.values()) == {scenarios.scaling(64).hardware.memory_bytes}
