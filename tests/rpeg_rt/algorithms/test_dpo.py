"""DPO against loops over Python numbers; pairs stay together in minibatches and microbatches."""

import math

import pytest
import torch

from ir_schema.problem import RunConfig
from rpeg_rt.algorithms.batch import Columns, TrainBatch, minibatches
from rpeg_rt.algorithms.dpo import DPO, preferred
from rpeg_rt.engine.alignment import by_length

LENGTHS = [3, 1, 4, 2, 2, 2]


def alone(x):
    return x


def rows(seed=0):
    tokens = torch.full((6, 6), -1, dtype=torch.int32)
    tokens[:, 1] = 7
    for i, n in enumerate(LENGTHS):
        tokens[i, 2 : 2 + n] = 5
    mask = tokens[:, 2:] >= 0
    generator = torch.Generator().manual_seed(seed)
    logp, ref = (
        torch.where(mask, -torch.rand(6, 4, generator=generator, dtype=torch.float64), 0.0) for _ in range(2)
    )
    return Columns(
        prompts=torch.tensor([0, 0, 1, 1, 2, 2]),
        tokens=tokens,
        prompt_length=2,
        eos=9,
        logp=logp,
        logp_ref=ref,
    )


def loop_margins(logp, ref, beta):
    def ratio(i):
        return sum(float(logp[i, t]) - float(ref[i, t]) for t in range(LENGTHS[i]))

    return [beta * (ratio(i) - ratio(i + 1)) for i in (0, 2, 4)]


def test_loss_and_gradient():
    learner, columns = DPO(RunConfig(algorithm="dpo", dpo_beta=0.3)), rows()
    batch, _ = learner.prepare(columns, alone)
    assert float(batch.terms) == 3
    new = rows(1).logp.clone().requires_grad_()
    loss, _ = learner.loss(new, None, batch)
    margins = loop_margins(new.detach(), columns.logp_ref, 0.3)
    assert float(loss.detach()) == pytest.approx(sum(-math.log(1 / (1 + math.exp(-m))) for m in margins))
    (gradient,) = torch.autograd.grad(loss, new)
    for pair, m in enumerate(margins):
        pull = 0.3 / (1 + math.exp(m))
        for i, sign in ((2 * pair, -1), (2 * pair + 1, 1)):
            expected = [sign * pull] * LENGTHS[i] + [0.0] * (4 - LENGTHS[i])
            assert gradient[i].tolist() == pytest.approx(expected)


def test_what_the_scoring_policy_thinks():
    columns = rows()
    _, metrics = DPO(RunConfig(algorithm="dpo", dpo_beta=0.3)).prepare(columns, alone)
    margins = loop_margins(columns.logp, columns.logp_ref, 0.3)
    assert metrics["margin"] == pytest.approx(sum(margins) / 3)
    assert metrics["accuracy"] == pytest.approx(sum(m > 0 for m in margins) / 3)
    assert metrics["chosen_reward"] - metrics["rejected_reward"] == pytest.approx(metrics["margin"])
    assert metrics["response_tokens"] == pytest.approx(sum(LENGTHS) / 6)


def test_undecided_pairs_are_half_right():
    margins = torch.tensor([1.0, -1.0, 1e-14, -1e-14], dtype=torch.float64)
    assert preferred(margins).tolist() == [1.0, 0.0, 0.5, 0.5]


def test_pairs_stay_together():
    batch, _ = DPO(RunConfig(algorithm="dpo")).prepare(rows(), alone)
    parts = list(minibatches(batch, 2, 1))
    assert [p.prompts.tolist() for p in parts] == [[0, 0, 2, 2], [1, 1]]
    assert [float(p.terms) for p in parts] == [2, 1]
    assert all(p.paired for p in parts)
    order = by_length(batch.tokens, batch.together)
    assert order.tolist() == [4, 5, 0, 1, 2, 3]
    assert by_length(batch.tokens).tolist() == [1, 3, 4, 5, 0, 2]


def test_a_replica_may_have_no_pairs():
    learner = DPO(RunConfig(algorithm="dpo"))
    batch, _ = learner.prepare(rows(), alone)
    empty = batch.select(slice(0, 0))
    assert isinstance(empty, TrainBatch)
    loss, _ = learner.loss(torch.zeros(0, 4, dtype=torch.float64), None, empty)
    assert float(loss) == 0
    assert len(by_length(empty.tokens, 2)) == 0
