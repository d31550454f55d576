"""Proximal policy optimisation, formula by formula as in `docs/learning.md`.

Shapes: n sequences of at most L_r response tokens; `mask` [n, L_r] bool marks response tokens. Every result
is 0 outside the mask. Losses are sums over tokens.
"""

import torch
from torch import Tensor

from ir_schema.problem import RunConfig
from rpeg_rt.algorithms.batch import AllReduce, Metrics, TrainBatch, response_mask, truncated

WHITEN_EPSILON = 1e-8


def last_token(mask: Tensor) -> Tensor:
    """[n, L_r] bool: the last response token of each row; a row without tokens has none."""
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def token_rewards(
    rewards: Tensor, logp: Tensor | None, logp_ref: Tensor | None, mask: Tensor, kl_coefficient: float
) -> Tensor:
    """[n, L_r]: -kl_coefficient * (logp - logp_ref) per token, plus the sequence reward [n] at the last.

    Without either log-probability there is no KL term: a graph may have no reference, and the PPO preset's
    critic does not read the behaviour's log-probabilities.
    """
    sequence = torch.where(last_token(mask), rewards[:, None], 0.0)
    if logp is None or logp_ref is None:
        return sequence
    return torch.where(mask, sequence - kl_coefficient * (logp - logp_ref), 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, gae_lambda: float) -> Tensor:
    """[n, L_r] advantages: A_t = sum_k (discount*lambda)^k delta_{t+k} with
    delta_t = r_t + discount*V_{t+1} - V_t.

    The value after the last token is 0, truncated or not.
    """
    values = torch.where(mask, values, 0.0)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    delta = torch.where(mask, rewards + discount * following - values, 0.0)
    advantages = torch.zeros_like(delta)
    running = torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        running = delta[:, t] + discount * gae_lambda * running
        advantages[:, t] = running
    return torch.where(mask, advantages, 0.0)


def whiten(advantages: Tensor, mask: Tensor, all_reduce: AllReduce) -> Tensor:
    """(A - mean) / sqrt(variance + 1e-8), moments over all response tokens of all replicas, in float64."""
    wide = torch.where(mask, advantages.double(), 0.0)
    total, count = all_reduce(torch.stack([wide.sum(), mask.sum(dtype=torch.float64)]))
    centred = torch.where(mask, wide - total / count.clamp(min=1), 0.0)
    variance = all_reduce(centred.square().sum()) / count.clamp(min=1)
    return (centred * torch.rsqrt(variance + WHITEN_EPSILON)).to(advantages.dtype)


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, clip_ratio: float
) -> tuple[Tensor, Metrics]:
    """Sum over tokens of -min(ratio*A, clip(ratio, 1 -+ clip_ratio)*A), ratio = exp(logp - old_logp)."""
    difference = torch.where(mask, logp - old_logp, 0.0)
    ratio = difference.exp()
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    loss = torch.where(mask, -torch.minimum(ratio * advantages, clipped * advantages), 0.0).sum()
    with torch.no_grad():
        metrics = {
            "policy_loss": loss.double(),
            "clip_fraction": (clipped * advantages < ratio * advantages).sum(dtype=torch.float64),
            "update_kl": (ratio - 1 - difference).sum(dtype=torch.float64),
        }
    return loss, metrics


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, value_clip: float
) -> tuple[Tensor, Metrics]:
    """Sum over tokens of 1/2 max((V - ret)^2, (clip(V, V_old +- value_clip) - ret)^2)."""
    clipped = torch.minimum(torch.maximum(values, old_values - value_clip), old_values + value_clip)
    squared = torch.maximum((values - returns).square(), (clipped - returns).square())
    loss = 0.5 * torch.where(mask, squared, 0.0).sum()
    return loss, {"value_loss": loss.detach().double()}


def prepare(
    run: RunConfig,
    all_reduce: AllReduce,
    *,
    prompts: Tensor,
    tokens: Tensor,
    prompt_length: int,
    eos: int | None,
    logp: Tensor | None,
    logp_ref: Tensor | None,
    rewards: Tensor,
    values: Tensor,
) -> tuple[TrainBatch, dict[str, float]]:
    """The batch of a training operator, from this replica's rows of the containers that it reads.

    Collective over the replicas. `prompts` [n] holds prompt indices within the step, `tokens`
    [n, L_p + L_r], `rewards` [n], the rest [n, L_r]; `eos` None: responses end at L_r
    only. Also returns the step's metrics over all replicas.
    """
    mask = response_mask(tokens, prompt_length)
    rewards = rewards.to(values.dtype)
    advantages = gae(
        token_rewards(rewards, logp, logp_ref, mask, run.kl_coefficient),
        values,
        mask,
        run.discount,
        run.gae_lambda,
    )
    batch = TrainBatch(
        prompts=prompts,
        tokens=tokens,
        mask=mask,
        logp=logp,
        values=values,
        advantages=whiten(advantages, mask, all_reduce),
        returns=torch.where(mask, advantages + values, 0.0),
    )
    return batch, _step_metrics(batch, rewards, truncated(tokens, prompt_length, eos), logp_ref, all_reduce)


def _step_metrics(
    batch: TrainBatch, rewards: Tensor, cut: Tensor, logp_ref: Tensor | None, all_reduce: AllReduce
) -> dict[str, float]:
    """Means per sequence (reward, length, share of those `cut` off) and per response token (entropy and KL
    estimated by sampling)."""
    per_sequence = {
        "reward": rewards,
        "reward_square": rewards.square(),
        "response_tokens": batch.mask.sum(1),
        "truncated": cut,
    }
    per_token = {"value": batch.values, "return": batch.returns}
    if batch.logp is not None:
        per_token["entropy"] = -batch.logp
        if logp_ref is not None:
            per_token["kl_to_reference"] = batch.logp - logp_ref
    sums = [column.sum(dtype=torch.float64) for column in per_sequence.values()]
    sums += [torch.where(batch.mask, column, 0.0).sum(dtype=torch.float64) for column in per_token.values()]
    sums.append(torch.tensor(float(len(batch)), dtype=torch.float64, device=batch.tokens.device))
    *totals, sequences = all_reduce(torch.stack(sums)).tolist()
    tokens = max(totals[2], 1.0)
    counts = [max(sequences, 1.0)] * len(per_sequence) + [tokens] * len(per_token)
    means = {
        name: total / count
        for name, total, count in zip([*per_sequence, *per_token], totals, counts, strict=True)
    }
    means["reward_std"] = max(0.0, means.pop("reward_square") - means["reward"] ** 2) ** 0.5
    return means


def actor_loss(logp: Tensor, batch: TrainBatch, run: RunConfig) -> tuple[Tensor, Metrics]:
    """Policy loss of the rows of `batch` under the log-probabilities [n, L_r] just computed."""
    if batch.logp is None:
        raise ValueError("the policy loss needs the log-probabilities of the version that generated")
    return policy_loss(logp, batch.logp, batch.advantages, batch.mask, run.clip_ratio)


def critic_loss(values: Tensor, batch: TrainBatch, run: RunConfig) -> tuple[Tensor, Metrics]:
    """Value loss of the rows of `batch` under the values [n, L_r] just computed."""
    return value_loss(values, batch.values, batch.returns, batch.mask, run.value_clip)
