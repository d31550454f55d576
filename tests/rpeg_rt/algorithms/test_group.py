"""GRPO, RLOO and REINFORCE against numbers worked out by hand and plain loops."""

import statistics

import pytest
import torch

from ir_schema.problem import RunConfig, Workload
from rpeg_rt.algorithms import make_learner
from rpeg_rt.algorithms.batch import Columns
from rpeg_rt.algorithms.group import Baseline, group_relative, leave_one_out
from rpeg_rt.algorithms.policy import kl_estimate

EOS = 9
LENGTHS = [3, 1, 4, 2]


def alone(x):
    return x


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_group_relative():
    rewards = tensor([1.0, 2.0, 6.0, 5.0, 5.0, 5.0])
    centred = group_relative(rewards, 3, scale=False)
    assert centred.tolist() == [-2, -1, 3, 0, 0, 0]
    scaled = group_relative(rewards, 3, scale=True)
    spread = statistics.stdev([1.0, 2.0, 6.0]) + 1e-6
    torch.testing.assert_close(scaled, tensor([-2 / spread, -1 / spread, 3 / spread, 0, 0, 0]))


def test_leave_one_out():
    advantages = leave_one_out(tensor([1.0, 2.0, 6.0, 5.0, 5.0, 8.0]), 3)
    assert advantages.tolist() == [1 - 4, 2 - 3.5, 6 - 1.5, 5 - 6.5, 5 - 6.5, 8 - 5]


def test_the_baseline_runs_over_steps():
    baseline = Baseline(0.9)
    assert baseline.update(2.0) == 2.0
    assert baseline.update(4.0) == pytest.approx(2.2)
    assert baseline.update(4.0) == pytest.approx(2.38)
    last = Baseline(0.0)
    assert [last.update(x) for x in (1.0, 5.0)] == [1.0, 5.0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates(estimator):
    """For a distribution over three tokens, k1 and k3 have the divergence as their mean; k2 is near it."""
    p, q = tensor([0.2, 0.5, 0.3]), tensor([0.25, 0.45, 0.3])
    logp, ref = p.log()[:, None], q.log()[:, None]
    estimate = kl_estimate(logp, ref, torch.ones(3, 1, dtype=torch.bool), estimator)[:, 0]
    exact = float((p * (p / q).log()).sum())
    assert float((p * estimate).sum()) == pytest.approx(exact, rel=0.05 if estimator == "k2" else 1e-9)
    assert estimator == "k1" or (estimate >= 0).all()
    assert (kl_estimate(logp, ref, torch.zeros(3, 1, dtype=torch.bool), estimator) == 0).all()


def rows(**changes):
    tokens = torch.full((4, 7), -1, dtype=torch.int32)
    tokens[:, 1:3] = 7
    for i, n in enumerate(LENGTHS):
        tokens[i, 3 : 3 + n] = 5
        tokens[i, 2 + n] = EOS
    mask = tokens[:, 3:] >= 0
    generator = torch.Generator().manual_seed(0)
    logp = torch.where(mask, -torch.rand(4, 4, generator=generator, dtype=torch.float64), 0.0)
    ref = torch.where(mask, -torch.rand(4, 4, generator=generator, dtype=torch.float64), 0.0)
    given = {
        "prompts": torch.tensor([0, 0, 1, 1]),
        "tokens": tokens,
        "prompt_length": 3,
        "eos": EOS,
        "logp": logp,
        "logp_ref": ref,
        "rewards": tensor([1.0, 3.0, 2.0, 2.0]),
    }
    return Columns(**(given | changes))


def prepared(algorithm, columns, **hyperparameters):
    run = RunConfig(algorithm=algorithm, **hyperparameters)
    workload = Workload(prompts=2, rollouts=2, prompt_length=3, response_length=4)
    found = make_learner(run, workload, policy=True, value=False)
    return found, *found.prepare(columns, alone)


def penalised(columns, coefficient):
    """Rewards less coefficient times the sum of logp - ref, in a loop."""
    return [
        float(r) - coefficient * sum(float(columns.logp[i, t] - columns.logp_ref[i, t]) for t in range(n))
        for i, (r, n) in enumerate(zip(columns.rewards, LENGTHS, strict=True))
    ]


def test_rloo_has_the_divergence_in_its_rewards():
    columns = rows()
    _, batch, metrics = prepared("rloo", columns, kl_coefficient=0.5)
    a, b, c, d = penalised(columns, 0.5)
    expected = [a - b, b - a, c - d, d - c]
    for i, n in enumerate(LENGTHS):
        assert batch.advantages[i].tolist() == pytest.approx([expected[i]] * n + [0.0] * (4 - n))
    assert metrics["reward"] == 2.0


def test_reinforce_keeps_its_baseline():
    columns = rows()
    found, batch, metrics = prepared("reinforce", columns, kl_coefficient=0.5, baseline_decay=0.5)
    first = statistics.fmean(penalised(columns, 0.5))
    assert metrics["baseline"] == pytest.approx(first)
    assert float(batch.advantages[1, 0]) == pytest.approx(penalised(columns, 0.5)[1] - first)
    _, metrics = found.prepare(rows(rewards=columns.rewards + 2), alone)
    assert metrics["baseline"] == pytest.approx(first + 1)


def test_grpo_has_the_divergence_in_its_loss():
    columns = rows()
    found, batch, _ = prepared("grpo", columns, kl_coefficient=0.5)
    deviation = 2**0.5 + 1e-6
    assert batch.advantages[:, 0].tolist() == pytest.approx([-1 / deviation, 1 / deviation, 0, 0])
    new = torch.where(batch.mask, columns.logp * 1.1, 0.0).requires_grad_()
    loss, sums = found.loss(new, None, batch)
    d = (columns.logp_ref - new.detach())[batch.mask]
    assert float(sums["kl_loss"]) == pytest.approx(float((d.exp() - d - 1).sum()))
    assert float(loss) == pytest.approx(float(sums["policy_loss"] + 0.5 * sums["kl_loss"]))
    (gradient,) = torch.autograd.grad(loss, new)
    assert float(gradient[2, 0]) == pytest.approx(0.5 * (1 - float((columns.logp_ref - new)[2, 0].exp())))


def test_without_a_reference_there_is_no_divergence():
    for algorithm in ("grpo", "rloo", "reinforce"):
        found, batch, metrics = prepared(algorithm, rows(logp_ref=None), kl_coefficient=0.5)
        loss, _ = found.loss(batch.logp, None, batch)
        assert float(loss) == pytest.approx(-float(batch.advantages.sum()))
        assert "kl_to_reference" not in metrics


def test_what_a_group_lacks_is_an_error():
    with pytest.raises(ValueError, match="not together"):
        prepared("grpo", rows(prompts=torch.tensor([0, 1, 1, 2])))
    with pytest.raises(ValueError, match="version that generated"):
        prepared("rloo", rows(logp=None))
