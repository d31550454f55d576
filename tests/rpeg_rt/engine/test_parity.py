"""Generation, scores and training do not depend on the layout (float64), and equal a plain model."""

import functools

import pytest
import torch

from ir_schema.problem import Optimizer
from rpeg_rt.algorithms.batch import TrainBatch
from rpeg_rt.engine import canonical_shapes, position_of, unsupported
from tests.reference import model as plain
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import WORKLOAD, layout

MODELS = {
    "llama, one shard partly padded": harness.spec(vocabulary=140),
    "qwen2, tied, padded only over four ranks": harness.spec(
        vocabulary=256, qkv_bias=True, tied_embeddings=True, kv_heads=4
    ),
    "qwen3, one kv head": harness.spec(vocabulary=13, qk_norm=True, head_dim=6, kv_heads=1),
    "gemma2 and gemma3 in one": harness.spec(
        vocabulary=13,
        qk_norm=True,
        head_dim=6,
        activation="gelu_pytorch_tanh",
        tied_embeddings=True,
        unit_offset_norm=True,
        scaled_embeddings=True,
        post_norms=True,
        sliding_window=3,
        full_attention_every=2,
        local_rope_theta=50.0,
        attention_scalar=9,
        attention_softcap=2.0,
        logit_softcap=5.0,
    ),
    "shared actor-critic, tied": harness.spec(vocabulary=13, head="both", tied_embeddings=True),
    "value model": harness.spec(vocabulary=13, head="scalar"),
    "four stages, a shard of padding alone": harness.spec(vocabulary=9, layers=4, tied_embeddings=True),
}
LAYOUTS = [
    layout(1, 1, 1),
    layout(2, 1, 1),
    layout(1, 2, 1),
    layout(1, 1, 2),
    layout(2, 2, 1),
    layout(1, 2, 2),
    layout(2, 1, 2),
    layout(1, 1, 4),
    layout(1, 4, 1),
    layout(1, 1, 1, 4),
    layout(1, 2, 1, 2),
]
LARGE = [
    layout(1, 1, 1, 2),
    layout(2, 1, 1, 2),
    layout(1, 1, 2, 2),
    layout(1, 1, 1, 8),
    layout(2, 1, 2, 2),
    layout(2, 2, 1, 2),
    layout(1, 2, 2, 2),
    layout(1, 4, 1, 2),
    layout(1, 1, 4, 2),
    layout(1, 2, 1, 4),
    layout(1, 1, 2, 4),
    layout(2, 1, 1, 4),
    layout(2, 2, 2, 1),
    layout(1, 4, 2, 1),
]


def layouts(name: str, among=tuple(LAYOUTS)):
    """The layouts that the model can be cut into; the first is a single process."""
    return [shape for shape in among if not unsupported(MODELS[name], shape, WORKLOAD)]


EOS = {140: 135, 256: 176}
"""Ends of sequences by vocabulary, chosen so that they are sampled; else 5."""

LENGTH = WORKLOAD.prompt_length
OPTIMIZER = Optimizer(learning_rate=1e-2, warmup_steps=2, max_gradient_norm=0.5, weight_decay=0.1)


def block(rows: torch.Tensor, groups) -> torch.Tensor:
    """The contiguous block of rows of this rank's replica."""
    return rows.chunk(groups.layout.data_parallel)[groups.place.data]


def prompts_of(spec) -> torch.Tensor:
    rows = harness.prompts()
    return torch.where(rows < 0, rows, rows * 37 % spec.vocabulary)


def responses(spec) -> torch.Tensor:
    """Sequences with responses of all lengths, for models that cannot generate."""
    generator = torch.Generator().manual_seed(5)
    prompts = prompts_of(spec).repeat_interleave(WORKLOAD.rollouts, 0)
    shape = (len(prompts), WORKLOAD.response_length)
    drawn = torch.randint(0, spec.vocabulary, shape, generator=generator, dtype=torch.int32)
    ends = 1 + torch.arange(len(prompts)) % WORKLOAD.response_length
    return torch.cat([prompts, drawn.masked_fill(torch.arange(shape[1]) >= ends[:, None], -1)], 1)


def generate(engine, groups, microbatches):
    prompts = block(prompts_of(engine.spec), groups)
    indices = block(torch.arange(WORKLOAD.prompts), groups).tolist()
    generation = engine.start_generation(
        prompts,
        indices,
        WORKLOAD.rollouts,
        seed=11,
        step=2,
        temperature=4.0,
        top_p=0.95,
        eos=EOS.get(engine.spec.vocabulary, 5),
        microbatches=microbatches,
    )
    return [generation.run_until(generation.total // 2), generation.run_until(generation.total)]


def batch_of(tokens: torch.Tensor) -> TrainBatch:
    """Rows with made-up advantages and targets, functions of the row alone."""
    mask = tokens[:, LENGTH:] >= 0
    figure = torch.sin(tokens.double().sum(1, keepdim=True) + torch.arange(mask.shape[1])) * mask
    return TrainBatch(
        prompts=torch.arange(len(tokens)) // WORKLOAD.rollouts,
        tokens=tokens,
        mask=mask,
        logp=0.1 * figure,
        values=figure,
        advantages=figure,
        returns=2 * figure,
    )


def loss(outputs, batch):
    total = torch.zeros((), dtype=torch.float64)
    if outputs.logp is not None:
        total = total - (outputs.logp * batch.advantages).sum()
    if outputs.values is not None:
        total = total + ((outputs.values - batch.returns) ** 2).sum()
    return total, {"tokens": batch.mask.sum(dtype=torch.float64)}


def run(spec, shape):
    """Everything an engine does, on this rank's part of a layout; None on other ranks."""
    groups = harness.groups_of(list(range(shape.gpus)), shape)
    if not groups.member:
        return None
    microbatches = 3 if shape.pipeline_parallel > 1 else 1
    engine = harness.engine(spec, groups, trainable=OPTIMIZER)
    out = {"generated": generate(engine, groups, microbatches) if spec.has_lm_head else []}
    tokens = block(responses(spec), groups)
    kinds = ["logp"] * spec.has_lm_head + ["values", "reward"] * spec.has_scalar_head
    out["scores"] = {k: engine.score(tokens, microbatches, k, temperature=1.3) for k in kinds}
    # Replica 1 is without rows in the first minibatch where there are two.
    parts = [responses(spec)[:6], responses(spec)[6:], responses(spec)]
    rows = [p if shape.data_parallel == 1 else p[: 6 * (1 - groups.place.data)] for p in parts[:1]]
    rows += [block(p, groups) for p in parts[1:]]
    out["metrics"] = [
        engine.train_minibatch(batch_of(r), loss, microbatches + i, temperature=1.3)
        for i, r in enumerate(rows)
    ]
    out["version"] = engine.finish_version()
    out["weights"] = [(s.name, s.slices, s.tensor.clone()) for s in engine.shards()]
    return out


@functools.cache
def everything(name: str):
    """By layout: the results of its ranks."""
    return outcomes(name, 4, layouts(name))


def outcomes(name: str, world: int, shapes, seconds: float = 300.0):
    results = harness.launch(world, lambda _: [run(MODELS[name], shape) for shape in shapes], seconds)
    return [[r[i] for r in results if r[i] is not None] for i in range(len(shapes))]


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_a_plain_model(name):
    spec = MODELS[name]
    weights = {n: harness.canonical(n, s) for n, s in canonical_shapes(spec).items()}
    tokens = responses(spec)
    hidden = plain.hidden_states(spec, weights, tokens)[:, LENGTH - 1 : -1]
    mask = tokens[:, LENGTH:] >= 0
    scores = everything(name)[0][0]["scores"]
    if spec.has_lm_head:
        distribution = torch.log_softmax(plain.logits(spec, weights, hidden) / 1.3, -1)
        expected = distribution.gather(-1, tokens[:, LENGTH:, None].clamp(min=0).long())[..., 0]
        torch.testing.assert_close(scores["logp"], expected.masked_fill(~mask, 0), rtol=0, atol=1e-12)
    if spec.has_scalar_head:
        values = (hidden @ weights["value_head.weight"][0]).masked_fill(~mask, 0)
        torch.testing.assert_close(scores["values"], values, rtol=0, atol=1e-12)
        at_end = plain.hidden_states(spec, weights, tokens)[range(len(tokens)), LENGTH + mask.sum(1) - 1]
        torch.testing.assert_close(
            scores["reward"], at_end @ weights["value_head.weight"][0], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_a_plain_model(name):
    spec = MODELS[name]
    weights = {n: harness.canonical(n, s).requires_grad_() for n, s in canonical_shapes(spec).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    result = everything(name)[0][0]
    for i, tokens in enumerate((responses(spec)[:6], responses(spec)[6:], responses(spec))):
        batch = batch_of(tokens)
        hidden = plain.hidden_states(spec, weights, tokens)[:, LENGTH - 1 : -1]
        total = torch.zeros((), dtype=torch.float64)
        if spec.has_lm_head:
            distribution = torch.log_softmax(plain.logits(spec, weights, hidden) / 1.3, -1)
            entropy = torch.distributions.Categorical(logits=distribution).entropy()[batch.mask].mean()
            assert result["metrics"][i]["entropy"] == pytest.approx(float(entropy.detach()), rel=1e-12)
            logp = distribution.gather(-1, tokens[:, LENGTH:, None].clamp(min=0).long())[..., 0]
            total = total - (logp * batch.advantages)[batch.mask].sum()
        if spec.has_scalar_head:
            values = hidden @ weights["value_head.weight"][0]
            total = total + ((values - batch.returns) ** 2)[batch.mask].sum()
        optimizer.zero_grad()
        (total / batch.mask.sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), 0.5)
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (i + 1) / 2)
        optimizer.step()
        assert result["metrics"][i]["gradient_norm"] == pytest.approx(float(norm), rel=1e-10)
        assert result["metrics"][i]["loss"] == pytest.approx(
            float(total.detach() / batch.mask.sum()), rel=1e-10
        )
    for tensor, slices, values in result["weights"]:
        torch.testing.assert_close(values, weights[tensor].detach()[slices], rtol=0, atol=1e-10, msg=tensor)


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n].has_lm_head])
def test_generation_is_equal_under_every_layout(name):
    reference, *others = everything(name)
    whole = merged(reference[0]["generated"])
    assert whole["indices"].tolist() == list(range(WORKLOAD.sequences))
    lengths = (whole["tokens"][:, LENGTH:] >= 0).sum(1)
    assert len(set(lengths.tolist())) > 2, "the test needs responses of different lengths"
    ended = (whole["tokens"][:, LENGTH:] == EOS.get(MODELS[name].vocabulary, 5)).any(1)
    assert (lengths[~ended] == WORKLOAD.response_length).all()
    for shape, ranks in zip(layouts(name)[1:], others, strict=True):
        generation_is_equal(shape, ranks, whole)


def generation_is_equal(shape, ranks, whole):
    size = WORKLOAD.sequences // shape.data_parallel
    for i, rank in enumerate(ranks):
        replica = position_of(i, shape).data
        mine = merged(rank["generated"])
        part = slice(replica * size, (replica + 1) * size)
        assert torch.equal(mine["tokens"], whole["tokens"][part]), shape
        torch.testing.assert_close(mine["logp"], whole["logp"][part], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n].has_lm_head])
def test_a_phase_releases_the_shortest_sequences(name):
    for ranks in everything(name):
        for rank in ranks:
            first, second = rank["generated"]
            ends = [
                sorted(zip((f.tokens[:, LENGTH:] >= 0).sum(1).tolist(), f.indices.tolist(), strict=True))
                for f in (first, second)
            ]
            assert len(ends[0]) == len(ends[1])
            assert ends[0][-1] < ends[1][0]


def merged(phases):
    order = torch.cat([p.indices for p in phases]).argsort()
    fields = ("indices", "tokens", "logp")
    return {f: torch.cat([getattr(p, f) for p in phases])[order] for f in fields}


@pytest.mark.parametrize("name", MODELS)
def test_scores_and_training_are_equal_under_every_layout(name):
    (reference,), *others = everything(name)
    for shape, ranks in zip(layouts(name)[1:], others, strict=True):
        scores_and_training_are_equal(name, shape, ranks, reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_everything_is_equal_under_layouts_of_eight_ranks(name):
    ((reference,),) = outcomes(name, 1, LAYOUTS[:1])
    shapes = layouts(name, LARGE)
    assert any(s.gpus == 8 and s.context_parallel > 1 for s in shapes)
    for shape, ranks in zip(shapes, outcomes(name, 8, shapes, seconds=1800.0), strict=True):
        assert len(ranks) == shape.gpus
        if MODELS[name].has_lm_head:
            generation_is_equal(shape, ranks, merged(reference["generated"]))
        scores_and_training_are_equal(name, shape, ranks, reference)


def scores_and_training_are_equal(name, shape, ranks, reference):
    whole = {n: torch.zeros(s, dtype=torch.float64) for n, s in canonical_shapes(MODELS[name]).items()}
    for tensor, slices, values in reference["weights"]:
        whole[tensor][slices] = values
    for i, rank in enumerate(ranks):
        replica = position_of(i, shape).data
        for kind, expected in reference["scores"].items():
            part = expected.chunk(shape.data_parallel)[replica]
            torch.testing.assert_close(rank["scores"][kind], part, rtol=0, atol=1e-12)
        last = position_of(i, shape).pipeline == shape.pipeline_parallel - 1
        for mine, theirs in zip(rank["metrics"], reference["metrics"], strict=True):
            assert mine == pytest.approx(theirs if last else {k: theirs[k] for k in mine}, rel=1e-9)
            assert last or set(mine) == {"gradient_norm", "learning_rate"}
        assert rank["version"] == 1
        for tensor, slices, values in rank["weights"]:
            torch.testing.assert_close(
                values, whole[tensor][slices], rtol=0, atol=1e-9, msg=f"{shape} {tensor}"
            )


def test_the_same_run_gives_the_same_bits():
    spec = MODELS["qwen3, one kv head"]
    shape = layout(1, 2, 2)
    once, again = (harness.launch(4, lambda _: run(spec, shape)) for _ in range(2))
    for a, b in zip(once, again, strict=True):
        assert all(torch.equal(x[2], y[2]) for x, y in zip(a["weights"], b["weights"], strict=True))
        assert all(torch.equal(x.logp, y.logp) for x, y in zip(a["generated"], b["generated"], strict=True))


def half(shape):
    """Scores, and the loss over twenty small steps, of a model whose weights are bfloat16."""
    groups = harness.groups_of(list(range(shape.gpus)), shape)
    if not groups.member:
        return None
    spec = harness.spec(vocabulary=13)
    engine = harness.engine(spec, groups, torch.bfloat16, trainable=Optimizer(learning_rate=2e-4))
    (first, second) = generate(engine, groups, 1)
    assert first.logp.dtype == second.logp.dtype == torch.float32
    tokens = block(responses(spec), groups)
    scores = engine.score(tokens, 1, "logp")
    before = torch.cat([s.tensor.flatten() for s in engine.shards()])
    losses = [engine.train_minibatch(batch_of(tokens), loss, 2).get("loss") for _ in range(20)]
    after = torch.cat([s.tensor.flatten() for s in engine.shards()])
    large = before.abs() > 0.25  # so large that one step is less than half a unit in the last place
    return scores, losses, float((before != after)[large].float().mean())


def test_bfloat16_weights_are_trained_through_single_precision_copies():
    shapes = [layout(1, 1, 1), layout(2, 1, 1), layout(1, 1, 2)]
    results = harness.launch(2, lambda _: [half(shape) for shape in shapes])
    (one, losses, changed), (two, others, _), (cut, rest, _) = results[0]
    torch.testing.assert_close(torch.cat([two, results[1][1][0]]), one, rtol=0, atol=0.1)
    torch.testing.assert_close(cut, one, rtol=0, atol=0.1)
    assert losses[-1] < losses[0] - 0.05
    assert others == pytest.approx(losses, abs=0.05)
    assert rest == pytest.approx(losses, abs=0.05)
    assert changed > 0.5
