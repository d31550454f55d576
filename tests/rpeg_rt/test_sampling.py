"""Counter-based uniforms and the choice of tokens."""

import numpy as np
import pytest
import torch

from rpeg_rt.sampling import derive_seed, philox, sample, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of the Random123 distribution
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert tuple(int(w) for w in philox(counter, key)) == expected


def test_uniforms_do_not_depend_on_the_batch():
    prompt, rollout, token = np.arange(5)[:, None, None], np.arange(3)[None, :, None], np.arange(4)
    block = uniforms(7, 2, prompt, rollout, token)
    assert block.shape == (5, 3, 4)
    assert len(np.unique(block)) == block.size
    for p in range(5):
        for r in range(3):
            for t in range(4):
                assert uniforms(7, 2, p, r, t) == block[p, r, t]
    assert uniforms(8, 2, 1, 1, 1) != block[1, 1, 1]
    assert uniforms(7, 3, 1, 1, 1) != block[1, 1, 1]


def test_uniforms_are_uniform():
    u = uniforms(1, np.arange(20)[:, None], np.arange(50), 0, 3)
    assert u.min() >= 0
    assert u.max() < 1
    counts, _ = np.histogram(u, bins=10, range=(0, 1))
    assert ((counts - 100.0) ** 2 / 100).sum() < 27.9  # chi-square, 9 degrees, p = 0.001


def test_derived_seeds_differ():
    assert len({derive_seed(s, p) for s in range(10) for p in ("prompts", "evaluation")}) == 20


def test_sample_inverts_the_cumulative_distribution():
    p = torch.tensor([0.1, 0.0, 0.4, 0.5, 0.0], dtype=torch.float64)
    u = torch.tensor([0.0, 0.0999, 0.1001, 0.4999, 0.5001, 0.9999], dtype=torch.float64)
    tokens, logp = sample(p.log().expand(6, 5), u)
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    torch.testing.assert_close(logp, p.log()[tokens])


def test_sample_at_the_ends_never_takes_an_impossible_token():
    logits = torch.randn(64, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[:, [0, 10]] = -torch.inf
    for u in (0.0, 1 - 2.0**-53):
        tokens, logp = sample(logits, torch.full((64,), u, dtype=torch.float64))
        assert torch.isfinite(logp).all()
        assert tokens.min() >= 1
        assert tokens.max() <= 9


def test_temperature_is_part_of_the_log_probability():
    logits = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    tokens, logp = sample(logits, torch.tensor([0.99]), temperature=2.0)
    assert tokens.tolist() == [1]
    torch.testing.assert_close(logp, torch.log_softmax(logits / 2, -1)[:, 1])


def test_top_p_keeps_the_smallest_mass_and_breaks_ties_by_token():
    p = torch.tensor([0.2, 0.3, 0.3, 0.2], dtype=torch.float64)
    u = torch.linspace(0, 1 - 1e-9, 101, dtype=torch.float64)
    kept = lambda top_p: set(sample(p.log().expand(101, 4), u, top_p=top_p)[0].tolist())  # noqa: E731
    assert kept(0.25) == {1}
    assert kept(0.5) == {1, 2}
    assert kept(0.75) == {0, 1, 2}
    assert kept(1.0) == {0, 1, 2, 3}
    _, logp = sample(p.log()[None], torch.tensor([0.0]), top_p=0.25)
    torch.testing.assert_close(logp, p.log()[1:2])  # of the whole vocabulary


def test_sampling_frequencies():
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0], dtype=torch.float64)
    u = torch.from_numpy(uniforms(3, 0, np.arange(20000), 0, 0))
    tokens, _ = sample(logits.expand(20000, 4), u)
    frequency = torch.bincount(tokens, minlength=4) / 20000
    torch.testing.assert_close(frequency.double(), logits.softmax(-1), atol=0.012, rtol=0)
