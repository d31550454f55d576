"""PPO against plainly written loops over Python numbers."""

import math
import random

import pytest
import torch

from ir_schema.problem import RunConfig
from rpeg_rt.algorithms.batch import Columns, minibatches
from rpeg_rt.algorithms.policy import policy_loss
from rpeg_rt.algorithms.ppo import PPO, gae, last_token, token_rewards, value_loss, whiten

LENGTHS = [3, 0, 5, 1, 4, 5]  # an empty response, one of one token, two at the limit
LIMIT = 5
EOS = 9


def alone(x):
    return x


def masked(seed, lengths=LENGTHS, limit=LIMIT, scale=1.0):
    """Random [n, limit] float64, zero beyond each length."""
    rng = random.Random(seed)
    return torch.tensor(
        [[scale * rng.gauss(0, 1) if t < n else 0.0 for t in range(limit)] for n in lengths],
        dtype=torch.float64,
    )


def mask_of(lengths=LENGTHS, limit=LIMIT):
    return torch.tensor([[t < n for t in range(limit)] for n in lengths])


def loop_rewards(r, logp, ref, lengths, coefficient):
    out = [[0.0] * LIMIT for _ in lengths]
    for i, n in enumerate(lengths):
        for t in range(n):
            out[i][t] = -coefficient * (float(logp[i][t]) - float(ref[i][t]))
            if t == n - 1:
                out[i][t] += float(r[i])
    return out


def loop_gae(rewards, values, lengths, g, lam):
    out = [[0.0] * LIMIT for _ in lengths]
    for i, n in enumerate(lengths):
        for t in range(n):
            for k in range(t, n):
                after = float(values[i][k + 1]) if k + 1 < n else 0.0
                delta = float(rewards[i][k]) + g * after - float(values[i][k])
                out[i][t] += (g * lam) ** (k - t) * delta
    return out


def loop_whiten(advantages, lengths):
    flat = [float(advantages[i][t]) for i, n in enumerate(lengths) for t in range(n)]
    mean = sum(flat) / len(flat)
    variance = sum((a - mean) ** 2 for a in flat) / len(flat)
    return [
        [
            (float(advantages[i][t]) - mean) / math.sqrt(variance + 1e-8) if t < n else 0.0
            for t in range(LIMIT)
        ]
        for i, n in enumerate(lengths)
    ]


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)


def test_last_token():
    assert last_token(mask_of()).nonzero().tolist() == [[0, 2], [2, 4], [3, 0], [4, 3], [5, 4]]


def test_token_rewards():
    r, logp, ref = torch.arange(6, dtype=torch.float64), masked(1), masked(2)
    close(token_rewards(r, logp, ref, mask_of(), 0.03), loop_rewards(r, logp, ref, LENGTHS, 0.03))
    close(token_rewards(r, None, ref, mask_of(), 0.03), loop_rewards(r, ref, ref, LENGTHS, 0.03))


@pytest.mark.parametrize(("discount", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 0.0), (0.97, 1.0)])
def test_gae(discount, lam):
    rewards, values = masked(3), masked(4)
    close(gae(rewards, values, mask_of(), discount, lam), loop_gae(rewards, values, LENGTHS, discount, lam))


def test_gae_ignores_what_stands_beyond_the_end():
    rewards, values, mask = masked(3), masked(4), mask_of()
    dirty = torch.where(mask, values, 99.0)
    close(gae(rewards, dirty, mask, 1.0, 0.95), gae(rewards, values, mask, 1.0, 0.95))


def test_whiten():
    advantages = masked(5) + 3 * mask_of()
    white = whiten(advantages, mask_of(), alone)
    close(white, loop_whiten(advantages, LENGTHS))


def test_whiten_over_replicas_is_whiten_of_everything():
    advantages, mask = masked(5), mask_of()
    parts = [slice(0, 2), slice(2, 3), slice(3, 6)]
    # Each replica must contribute before any may go on: find the two sums first, then replay them.
    first = sum(torch.stack([advantages[p][mask[p]].sum(), mask[p].sum().double()]) for p in parts)
    mean = first[0] / first[1]
    second = sum((advantages[p][mask[p]] - mean).square().sum() for p in parts)
    for p in parts:
        sums = iter([first, second])
        close(
            whiten(advantages[p], mask[p], lambda _, sums=sums: next(sums)),
            whiten(advantages, mask, alone)[p],
        )


@pytest.mark.parametrize("lengths", [[0, 0], [1, 0]])
def test_whiten_of_almost_nothing_is_finite(lengths):
    white = whiten(masked(1, lengths), mask_of(lengths), alone)
    close(white, torch.zeros(2, LIMIT))


def test_policy_loss_and_its_gradient():
    logp, old, advantages = masked(6).requires_grad_(), masked(7), masked(8)
    loss, metrics = policy_loss(logp, old, advantages, mask_of(), 0.2)
    (gradient,) = torch.autograd.grad(loss, logp)
    total, clipped, expected, logp = 0.0, 0, torch.zeros_like(old), logp.detach()
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            ratio, a = math.exp(float(logp[i, t]) - float(old[i, t])), float(advantages[i, t])
            bounded = min(max(ratio, 0.8), 1.2)
            total += -min(ratio * a, bounded * a)
            if bounded * a < ratio * a:
                clipped += 1
            else:
                expected[i, t] = -ratio * a
    close(loss.detach(), total)
    close(gradient, expected)
    assert metrics["clip_fraction"] == clipped > 0


def test_value_loss_and_its_gradient():
    values, old, returns = masked(9).requires_grad_(), masked(10), masked(11)
    loss, _ = value_loss(values, old, returns, mask_of(), 0.2)
    (gradient,) = torch.autograd.grad(loss, values)
    total, expected, values = 0.0, torch.zeros_like(old), values.detach()
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            v, o, g = float(values[i, t]), float(old[i, t]), float(returns[i, t])
            c = min(max(v, o - 0.2), o + 0.2)
            total += 0.5 * max((v - g) ** 2, (c - g) ** 2)
            if (v - g) ** 2 >= (c - g) ** 2:
                expected[i, t] = v - g
    close(loss.detach(), total)
    close(gradient, expected)


def test_padding_contributes_no_gradient_even_when_it_is_not_finite():
    mask = mask_of()
    logp = torch.where(mask, masked(1), -torch.inf).requires_grad_()
    loss, _ = policy_loss(logp, masked(2), masked(3), mask, 0.2)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert torch.isfinite(loss)
    assert (gradient[~mask] == 0).all()


def prepare(run, given):
    return PPO(run, policy=True, value=True).prepare(Columns(**given), alone)


def actor_loss(logp, batch, run):
    return PPO(run, policy=True, value=False).loss(logp, None, batch)


def critic_loss(values, batch, run):
    return PPO(run, policy=False, value=True).loss(None, values, batch)


def rows(lengths=LENGTHS, prompt_length=2):
    """Containers of a step of prompts with two rollouts each."""
    tokens = torch.full((len(lengths), prompt_length + LIMIT), -1, dtype=torch.int32)
    tokens[:, prompt_length - 1] = 7
    for i, n in enumerate(lengths):
        tokens[i, prompt_length : prompt_length + n] = 5
        if n and i != len(lengths) - 1:  # the last one was cut
            tokens[i, prompt_length + n - 1] = EOS
    return {
        "prompts": torch.arange(len(lengths)) // 2,
        "tokens": tokens,
        "prompt_length": prompt_length,
        "eos": EOS,
        "logp": masked(20, lengths),
        "logp_ref": masked(21, lengths),
        "rewards": torch.linspace(-1, 2, len(lengths)).float(),
        "values": masked(22, lengths),
    }


def test_prepare():
    given, run = rows(), RunConfig(kl_coefficient=0.05)
    batch, metrics = prepare(run, given)
    assert torch.equal(batch.mask, mask_of())
    rewards = loop_rewards(given["rewards"].double(), given["logp"], given["logp_ref"], LENGTHS, 0.05)
    advantages = loop_gae(rewards, given["values"], LENGTHS, 1.0, 0.95)
    close(batch.advantages, loop_whiten(advantages, LENGTHS))
    close(batch.returns, torch.tensor(advantages, dtype=torch.float64) + given["values"])
    assert metrics["reward"] == pytest.approx(float(given["rewards"].mean()))
    assert metrics["reward_std"] == pytest.approx(float(given["rewards"].std(correction=0)))
    assert metrics["response_tokens"] == pytest.approx(sum(LENGTHS) / 6)
    kl = float((given["logp"] - given["logp_ref"]).sum()) / sum(LENGTHS)
    assert metrics["kl_to_reference"] == pytest.approx(kl)
    assert metrics["truncated"] == pytest.approx(1 / 6)
    assert prepare(run, {**given, "eos": None})[1]["truncated"] == pytest.approx(2 / 6)


def test_first_update_of_one_minibatch_has_ratio_one():
    given, run = rows(), RunConfig()
    batch, _ = prepare(run, given)
    loss, metrics = actor_loss(given["logp"], batch, run)
    close(loss, -batch.advantages.sum())
    assert metrics["clip_fraction"] == 0
    assert metrics["update_kl"] == 0
    value, _ = critic_loss(given["values"], batch, run)
    close(value, 0.5 * (given["values"] - batch.returns)[batch.mask].square().sum())


def test_a_critic_that_does_not_read_the_log_probabilities():
    given, run = {**rows(), "logp": None}, RunConfig()
    batch, metrics = prepare(run, given)
    no_kl, _ = prepare(RunConfig(kl_coefficient=0.0), rows())
    close(batch.returns, no_kl.returns)
    assert "kl_to_reference" not in metrics
    with pytest.raises(ValueError, match="version that generated"):
        actor_loss(given["logp_ref"], batch, run)


@pytest.mark.parametrize("lengths", [[1] * 6, [0] * 6, [5] * 6])
def test_uniform_lengths(lengths):
    batch, metrics = prepare(RunConfig(), rows(lengths))
    for loss in (
        actor_loss(batch.logp, batch, RunConfig())[0],
        critic_loss(batch.values, batch, RunConfig())[0],
    ):
        assert torch.isfinite(loss)
    assert all(math.isfinite(m) for m in metrics.values())


def test_losses_of_microbatches_add_up():
    batch, _ = prepare(RunConfig(), rows())
    new = batch.logp + masked(30)
    whole, _ = actor_loss(new, batch, RunConfig())
    parts = [slice(0, 1), slice(1, 4), slice(4, 6)]
    close(sum(actor_loss(new[p], batch.select(p), RunConfig())[0] for p in parts), whole)


def test_minibatches_do_not_depend_on_the_replicas():
    batch, _ = prepare(RunConfig(), rows([2] * 8))
    whole = [sorted(set(b.prompts.tolist())) for b in minibatches(batch, 2, 3)]
    assert whole == [[0, 2], [1, 3]] * 3
    halves = [list(minibatches(batch.select(s), 2, 3)) for s in (slice(0, 4), slice(4, 8))]
    for m, expected in enumerate(whole):
        assert sorted({p for half in halves for p in half[m].prompts.tolist()}) == expected
        assert all(len(half[m]) == 2 for half in halves)


def test_a_replica_may_have_no_rows_of_a_minibatch():
    batch, _ = prepare(RunConfig(), rows([2] * 2))
    sizes = [len(b) for b in minibatches(batch, 3, 1)]
    assert sizes == [2, 0, 0]
    empty = batch.select(slice(0, 0))
    assert actor_loss(empty.logp, empty, RunConfig())[0] == 0
