"""Every well-formedness rule is broken once, and only its own diagnostic appears."""

import msgspec
import pytest

from ir_schema.hardware import AlphaBeta
from ir_schema.model import FullAttention
from ir_schema.problem import Container, Edge, Optimizer, RunConfig, SearchSpace, Verifier, Vertex
from passes.cost import model_for
from passes.verify import verify, warnings
from tests.passes.test_cases import CASES, load

replace = msgspec.structs.replace
BASE = load(CASES / "decided" / "05-ppo-partial-overlap.json")[0].problem


def graph(problem, **changes):
    return replace(problem, graph=replace(problem.graph, **changes))


def vertex(problem, name, **changes):
    vertices = tuple(replace(v, **changes) if v.name == name else v for v in problem.graph.vertices)
    return graph(problem, vertices=vertices)


def workload(problem, **changes):
    return replace(problem, workload=replace(problem.workload, **changes))


def add_vertices(problem, *vertices, containers=(), outputs=(), edges=()):
    g = problem.graph
    return graph(
        problem,
        vertices=g.vertices + vertices,
        containers=g.containers + tuple(Container(name=c, elements=1, bytes_each=4) for c in containers),
        outputs=g.outputs + outputs,
        data_edges=g.data_edges + edges,
    )


G = BASE.graph
FIRST = G.data_edges[0]
REF = G.vertices[1]
BREAKS = {
    "E101": lambda p: graph(p, vertices=(*G.vertices, replace(G.vertices[5], model="critic"))),
    "E102": lambda p: graph(p, data_edges=(*G.data_edges, Edge("actor_gen", "ref_inf", "Z"))),
    "E103": lambda p: vertex(p, "ref_inf", model="refx"),
    "E104": lambda p: graph(p, data_edges=(*G.data_edges, Edge("actor_gen", "ref_infx", "Y"))),
    "E105": lambda p: replace(p, search=SearchSpace(exclude=("0.2.0",))),
    "E201": lambda p: graph(p, data_edges=(*G.data_edges, Edge("ref_inf", "reward_inf", "logp_ref"))),
    "E202": lambda p: graph(p, publication_edges=(*G.publication_edges, Edge("actor_gen", "ref_inf", "Y"))),
    "E203": lambda p: graph(
        vertex(p, "actor_gen", reads=("W_actor", "X", "logp_ref")),
        data_edges=(*G.data_edges, Edge("ref_inf", "actor_gen", "logp_ref")),
    ),
    "E205": lambda p: graph(p, inputs=("W_ref", "W_reward")),
    "E206": lambda p: add_vertices(
        p,
        Vertex(name="x", role="inference", model="ref", reads=("W_ref", "Y"), writes=("z",)),
        containers=("z",),
        edges=(Edge("actor_gen", "x", "Y"),),
    ),
    "E207": lambda p: graph(p, inputs=(*G.inputs, "Y")),
    "E208": lambda p: graph(p, outputs=("logp_ref",)),
    "E209": lambda p: graph(p, data_edges=(*G.data_edges, FIRST)),
    "E210": lambda p: vertex(p, "reward_inf", writes=("r", "v")),
    "E211": lambda p: graph(p, trainable=(*G.trainable, "ref"), publication_edges=G.publication_edges),
    "E212": lambda p: add_vertices(
        p,
        Vertex(name="x", role="training", model="ref", reads=("W_ref", "Y"), writes=("z",)),
        containers=("z",),
        outputs=("z",),
        edges=(Edge("actor_gen", "x", "Y"),),
    ),
    "E213": lambda p: vertex(p, "actor_train", reads=("Y", "logp_actor", "logp_ref", "r", "v")),
    "E214": lambda p: vertex(p, "ref_inf", reads=("Y",)),
    "E215": lambda p: graph(p, publication_edges=G.publication_edges[:1]),
    "E216": lambda p: graph(
        vertex(p, "ref_inf", reads=("W_ref", "Y", "W_actor")),
        publication_edges=(*G.publication_edges, Edge("actor_train", "ref_inf", "W_actor")),
    ),
    "E217": lambda p: vertex(p, "ref_inf", reads=("W_ref", "Y", "r")),
    "E218": lambda p: graph(p, staleness={**G.staleness, "ref": 0}),
    "E219": lambda p: graph(p, staleness={"actor": -1, "critic": 0}),
    "E220": lambda p: replace(p, host={"reward_inf": Verifier(seconds_per_response=0.1)}),
    "E221": lambda p: graph(
        vertex(p, "ref_inf", reads=("W_ref", "Y", "W2")),
        containers=(*G.containers, Container(name="W2", elements=1, bytes_each=2, weights_of="ref")),
        inputs=(*G.inputs, "W2"),
    ),
    "E222": lambda p: graph(
        vertex(p, "reward_inf", writes=("r", "W_ref")), inputs=tuple(c for c in G.inputs if c != "W_ref")
    ),
    "E301": lambda p: replace(p, options=replace(p.options, cost_model="papre")),
    "E303": lambda p: workload(p, prompts=0),
    "E304": lambda p: workload(p, length_quantiles=((0.5, 96), (0.5, 192), (1.0, 384))),
    "E305": lambda p: replace(p, hardware=replace(p.hardware, runtime_reserve=1.5)),
    "E306": lambda p: replace(p, run=RunConfig(optimizers={"ref": Optimizer()})),
    "E307": lambda p: replace(p, models={**p.models, "ref": replace(p.models["ref"], kv_heads=3)}),
}


@pytest.mark.parametrize("code", BREAKS)
def test_each_rule(code):
    findings = verify(BREAKS[code](BASE))
    assert code in {d.code for d in findings}
    allowed = {
        "E211": {"E211", "E215", "E207"},  # an untrained model also lacks its publication edge
        "E202": {"E202", "E209"},  # the edge exists as a data edge already
        "E216": {"E216", "E217"},  # a published container of another model is also an unordered read
        "E214": {"E214", "E207"},  # nobody reads W_ref any more
        "E221": {"E221", "E214"},
    }.get(code, {code})
    assert {d.code for d in findings} <= allowed
    for d in findings:
        assert d.labels
        assert d.help
        assert all(label.path for label in d.labels)


def test_a_serving_vertex_after_its_own_training_is_a_cycle_of_precedence():
    late = Vertex(name="late", role="inference", model="actor", reads=("W_actor", "done"), writes=("z",))
    p = add_vertices(
        BASE, late, containers=("z", "done"), outputs=("z",), edges=(Edge("actor_train", "late", "done"),)
    )
    p = vertex(p, "actor_train", writes=("W_actor", "done"))
    p = graph(p, publication_edges=(*G.publication_edges, Edge("actor_train", "late", "W_actor")))
    assert [d.code for d in verify(p)] == ["E204"]
    assert verify(replace(p, options=replace(p.options, as_printed=True))) == []


def test_several_findings_are_reported_together():
    p = graph(BASE, inputs=("W_ref", "W_reward", "Y"), data_edges=(*G.data_edges, FIRST))
    assert {d.code for d in verify(p)} == {"E205", "E207", "E209"}


@pytest.mark.parametrize(
    "quantiles",
    [
        ((0.0, 96), (1.0, 384)),
        ((0.5, 96), (1.5, 384)),
        ((0.5, 96), (0.9, 384)),
        ((0.5, 96), (1.0, 383)),
        ((0.5, 200), (0.6, 100), (1.0, 384)),
    ],
)
def test_bad_quantiles(quantiles):
    assert {d.code for d in verify(workload(BASE, length_quantiles=quantiles))} == {"E304"}


@pytest.mark.parametrize(
    "hardware",
    [
        {"gamma_M": -1.0},
        {"nongemm_seconds": -1e-6},
        {"nongemm_reference": replace(BASE.hardware.nongemm_reference, tokens=0.0)},
        {"point_to_point": replace(BASE.hardware.collective, rack=AlphaBeta(alpha=1e-6, beta=-1.0))},
        {"all_gather": replace(BASE.hardware.collective, intra=AlphaBeta(alpha=-1.0, beta=0.0))},
    ],
)
def test_hardware_numbers_that_no_machine_has(hardware):
    findings = verify(replace(BASE, hardware=replace(BASE.hardware, **hardware)))
    assert [d.code for d in findings] == ["E303"]
    assert findings[0].labels[0].path.startswith(f"hardware.{next(iter(hardware))}")


def test_another_vocabulary_of_a_language_model_that_scores_is_told():
    models = {m: replace(s, vocabulary=s.vocabulary + (s.head == "scalar")) for m, s in BASE.models.items()}
    assert models != BASE.models
    assert warnings(replace(BASE, models=models)) == []
    other = replace(BASE, models={**BASE.models, "ref": replace(BASE.models["ref"], vocabulary=32128)})
    assert verify(other) == []
    assert [(d.code, d.severity) for d in warnings(other)] == [("W302", "warning")]


@pytest.mark.parametrize(
    ("factor", "told"), [(0.4, True), (0.6, False), (1, False), (1.9, False), (2.1, True)]
)
def test_weights_far_from_their_model_are_told(factor, told):
    count = model_for(BASE).parameters("ref")
    containers = tuple(
        replace(c, elements=int(factor * count)) if c.weights_of == "ref" else c for c in G.containers
    )
    found = warnings(graph(BASE, containers=containers))
    assert [(d.code, d.severity) for d in found] == [("W301", "warning")] * told
    for d in found:
        index = next(i for i, c in enumerate(G.containers) if c.weights_of == "ref")
        assert d.labels[0].path == f"graph.containers[{index}].elements"


def run_of(problem, **changes):
    return replace(problem, run=RunConfig(**changes))


BAD_RUNS = {
    "steps": (0,),
    "seed": (-1, 2**63),
    "temperature": (0.0, -1.0),
    "top_p": (0.0, 1.5),
    "kl_coefficient": (-0.1,),
    "discount": (-0.1, 1.1),
    "gae_lambda": (-0.1, 1.1),
    "clip_ratio": (0.0, -0.2),
    "value_clip": (0.0,),
    "baseline_decay": (-0.1, 1.0),
    "dpo_beta": (0.0,),
}
BAD_OPTIMIZERS = {
    "learning_rate": (-1.0,),
    "beta1": (-0.1, 1.0),
    "beta2": (1.0,),
    "epsilon": (0.0,),
    "weight_decay": (-1.0,),
    "max_gradient_norm": (0.0,),
    "warmup_steps": (-1,),
}


@pytest.mark.parametrize(("field", "values"), BAD_RUNS.items())
def test_hyperparameters_that_no_run_can_have(field, values):
    for value in values:
        [finding] = [f for f in verify(run_of(BASE, **{field: value})) if f.code != "E308"]
        assert (finding.code, finding.labels[0].path) == ("E305", f"run.{field}")
        assert finding.help


@pytest.mark.parametrize(
    ("run", "rollouts", "path"),
    [
        ({"algorithm": "grpo", "gae_lambda": 0.9}, 4, "run.gae_lambda"),
        ({"algorithm": "ppo", "scale_rewards": "none"}, 1, "run.scale_rewards"),
        ({"algorithm": "rloo", "baseline_decay": 0.5}, 2, "run.baseline_decay"),
        ({"algorithm": "dpo", "kl_coefficient": 0.5}, 2, "run.kl_coefficient"),
        ({"algorithm": "reinforce", "long_responses": "skip"}, 1, "run.long_responses"),
        ({"algorithm": "grpo", "kl_estimator": "k1"}, 2, "run.kl_estimator"),
        ({"algorithm": "grpo"}, 1, "workload.rollouts"),
        ({"algorithm": "rloo"}, 1, "workload.rollouts"),
        ({"algorithm": "dpo"}, 3, "workload.rollouts"),
        ({"algorithm": "dpo", "dpo_beta": 0.5, "long_responses": "skip"}, 2, None),
        ({"algorithm": "reinforce", "baseline_decay": 0.0, "kl_estimator": "k2"}, 1, None),
        ({"algorithm": "grpo", "kl_estimator": "k2", "clip_ratio": 0.1}, 8, None),
    ],
)
def test_what_an_algorithm_does_not_have(run, rollouts, path):
    made = replace(run_of(BASE, **run), workload=replace(BASE.workload, rollouts=rollouts))
    found = [f for f in verify(made) if f.code == "E308"]
    assert [f.labels[0].path for f in found] == ([] if path is None else [path])


@pytest.mark.parametrize(("field", "values"), BAD_OPTIMIZERS.items())
def test_settings_that_no_optimizer_can_have(field, values):
    for value in values:
        bad = Optimizer(**{field: value})
        [finding] = verify(run_of(BASE, optimizer=bad))
        assert (finding.code, finding.labels[0].path) == ("E305", f"run.optimizer.{field}")
        [finding] = verify(run_of(BASE, optimizers={"actor": bad}))
        assert (finding.code, finding.labels[0].path) == ("E305", f"run.optimizers.actor.{field}")


def test_the_ends_of_ranges_are_possible():
    run = {"seed": 2**63 - 1, "top_p": 1.0, "kl_coefficient": 0.0, "discount": 0.0, "gae_lambda": 1.0}
    optimizer = Optimizer(learning_rate=0.0, beta1=0.0, weight_decay=0.0, warmup_steps=0)
    assert verify(run_of(BASE, **run, optimizer=optimizer)) == []


def with_actor(**changes):
    models = {m: replace(spec, **changes) if m == "actor" else spec for m, spec in BASE.models.items()}
    return replace(BASE, models=models)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"attention_heads": 32, "kv_heads": 5}, "models.actor.kv_heads"),
        ({"attention_heads": 8, "kv_heads": 16}, "models.actor.kv_heads"),
        ({"hidden": 4097}, "models.actor.hidden"),
        (
            {"head_dim": 128, "full_attention": FullAttention(head_dim=64, kv_heads=7)},
            "models.actor.full_attention.kv_heads",
        ),
    ],
)
def test_heads_divide(changes, path):
    [finding] = verify(with_actor(**changes))
    assert (finding.code, finding.labels[0].path) == ("E307", path)


def test_a_head_width_of_its_own_frees_the_hidden_width():
    assert verify(with_actor(hidden=4097, head_dim=128)) == []


def test_optional_model_sizes_are_positive_where_given():
    models = {**BASE.models, "actor": replace(BASE.models["actor"], head_dim=0)}
    [finding] = verify(replace(BASE, models=models))
    assert (finding.code, finding.labels[0].path) == ("E303", "models.actor.head_dim")


def test_k_eval_and_negative_time():
    assert {d.code for d in verify(replace(BASE, options=replace(BASE.options, steps=0)))} == {"E303"}
    g = BASE.graph
    p = vertex(BASE, "reward_inf", model=None, reads=("Y",))
    p = replace(p, host={"reward_inf": Verifier(seconds_per_response=-1.0)})
    p = graph(p, inputs=tuple(c for c in g.inputs if c != "W_reward"),
              containers=tuple(c for c in g.containers if c.name != "W_reward"))  # fmt: skip
    assert {d.code for d in verify(p)} == {"E303"}


def test_a_cycle_is_reported_the_same_way_every_time():
    p = vertex(BASE, "actor_gen", reads=("W_actor", "X", "r"))
    p = vertex(p, "reward_inf", reads=("W_reward", "Y", "logp_ref"))
    edges = (Edge("ref_inf", "reward_inf", "logp_ref"), Edge("reward_inf", "actor_gen", "r"))
    (found,) = verify(graph(p, data_edges=(*G.data_edges, *edges)))
    assert found.code == "E203"
    assert found.message == (
        "data edges form a cycle within one step: actor_gen -> ref_inf -> reward_inf -> actor_gen"
    )
    assert found.labels[0].path == f"graph.data_edges[{len(G.data_edges) + 1}]"
