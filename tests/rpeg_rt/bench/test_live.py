"""How much memory something holds."""

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rpeg_rt.bench.live import forget_peak, highest, peak_tensor_bytes, process_bytes


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans())),
    st.integers(0, 20),
    st.integers(0, 9),
)
def test_the_most_that_is_held_in_an_interval(
    steps: list[tuple[int, int, bool]], begin: int, length: int
) -> None:
    changes, held, levels = [], {}, [0]
    for time, (address, size, returns) in enumerate(steps):
        if address not in held:
            held[address] = size
            changes.append((time, address, size))
        elif returns:
            changes.append((time, address, -held.pop(address)))
        else:  # another thread has returned it
            held[address] = size
            changes.append((time, address, size))
        levels.append(sum(held.values()))
    levels += [levels[-1]] * 40
    # levels[t + 1] is that after the change at t.
    assert highest(changes[::-1], begin, begin + length) == max(levels[begin : begin + length + 2])


def test_what_was_there_before_is_not_counted_when_it_goes() -> None:
    assert highest([(0, 7, -100), (1, 8, 5), (2, 8, -5)], 0, 3) == 5


def test_live_tensors_are_counted_to_the_byte() -> None:
    before = torch.zeros(10_000)

    def prepare() -> Callable[[], object]:
        construction = torch.zeros(100_000)  # gone before the call
        kept = construction[:1000].clone()
        state: list[torch.Tensor] = []

        def call() -> None:
            if not state:
                state.append(torch.zeros(500))  # as an optimizer makes its moments in its first step
            doubled = kept * 2
            (doubled + before[:1000]).sum()

        return call

    # What is kept, the state of the first call, two temporaries, and one number.
    assert 4 * 3500 <= peak_tensor_bytes(prepare) <= 4 * 3500 + 64


def test_gradients_and_what_the_backward_pass_keeps_are_counted() -> None:
    def prepare() -> Callable[[], object]:
        weight = torch.zeros(300, 200, requires_grad=True)
        rows = torch.ones(50, 200)

        def call() -> None:
            weight.grad = None
            torch.nn.functional.linear(rows, weight).square().sum().backward()

        return call

    weight, rows, output = 300 * 200, 50 * 200, 50 * 300
    peak = peak_tensor_bytes(prepare) / 4
    assert 2 * weight + rows + output <= peak <= 2 * weight + rows + 3 * output + 64


def test_what_a_process_has_occupied_is_forgotten() -> None:
    size = 200_000_000
    forget_peak()
    before = process_bytes()
    torch.ones(size // 4)
    with_tensor = process_bytes()
    assert before is not None
    assert with_tensor is not None
    assert with_tensor - before > 0.9 * size
    forget_peak()
    after = process_bytes()
    assert after is not None
    assert after < with_tensor - 0.5 * size
