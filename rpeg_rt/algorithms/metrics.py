"""What a training operator tells about the responses of a step, whatever the algorithm."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rpeg_rt.algorithms.batch import AllReduce, Columns


def means(sums: Mapping[str, Tensor], count: Tensor, all_reduce: AllReduce) -> dict[str, float]:
    """Sums over this replica's rows, added up over all replicas and divided by their `count` (at least 1)."""
    *totals, number = all_reduce(torch.stack([*sums.values(), count]).double()).tolist()
    return {name: total / max(number, 1.0) for name, total in zip(sums, totals, strict=True)}


def response_metrics(
    rows: Columns, rewards: Tensor, per_token: Mapping[str, Tensor], all_reduce: AllReduce
) -> dict[str, float]:
    """Means per sequence of reward (and its deviation), lengths and share cut off; per response token of
    `per_token` [n, L_r] and, where both log-probabilities are read, of the KL divergence to the reference as
    sampling estimates it. Collective over the replicas."""
    mask = rows.mask
    of_sequences = {
        "reward": rewards,
        "reward_square": rewards.square(),
        "prompt_tokens": rows.prompt_tokens,
        "response_tokens": mask.sum(1),
        "truncated": rows.truncated,
    }
    of_tokens = dict(per_token)
    if rows.logp is not None and rows.logp_ref is not None:
        of_tokens["kl_to_reference"] = rows.logp - rows.logp_ref
    sequences = torch.tensor(float(len(mask)), dtype=torch.float64, device=mask.device)
    sums = {name: column.sum(dtype=torch.float64) for name, column in of_sequences.items()}
    token_sums = {
        name: torch.where(mask, column, 0.0).sum(dtype=torch.float64) for name, column in of_tokens.items()
    }
    found = means(sums, sequences, all_reduce)
    found |= means(token_sums, mask.sum(dtype=torch.float64), all_reduce)
    found["reward_std"] = max(0.0, found.pop("reward_square") - found["reward"] ** 2) ** 0.5
    return found
