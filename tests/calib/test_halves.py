"""What half of a published table says is what the other half says, and foretells it as well."""

from pathlib import Path

import numpy as np
import pytest

from calib.fits import Found
from calib.statistics import mape
from calib.tables import Table, fit_products, read_table

DATA = Path(__file__).parents[2] / "calib" / "data" / "gemm_bf16.csv"


def error(found: Found, table: Table) -> float:
    """How far the products of a table are off what was found."""
    m, n, k = (table.numbers(c) for c in ("m", "n", "k"))
    v, narrow = found.values, np.minimum(n, k)
    speed = v["product_flops"] / (1 + v["gamma_M"] / m) / (1 + v["gamma_K"] / narrow)
    traffic = 2 * (m * n + n * k + m * k) / v["memory_bandwidth"]
    told = v["startup_seconds"] + np.maximum(2 * m * n * k / speed, traffic)
    return mape(table.numbers("latency_ms") * 1e-3, told)


@pytest.mark.parametrize("system", ["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200"])
@pytest.mark.parametrize("seed", range(2))
def test_halves_of_a_sweep_of_products_agree(system: str, seed: int) -> None:
    table = read_table(DATA.read_bytes(), "gemm", {"system": (system,)})
    order = np.random.default_rng(seed).permutation(len(table.rows))
    first, second = (table._replace(rows=[table.rows[i] for i in half]) for half in np.array_split(order, 2))
    one, other = fit_products(first), fit_products(second)
    for parameter in ("product_flops", "memory_bandwidth", "startup_seconds"):
        assert one.values[parameter] == pytest.approx(other.values[parameter], rel=0.15), parameter
    # gamma_M and gamma_K are told within a factor of three, which moves predictions by one in a hundred.
    assert error(one, second) < 1.2 * other.residual
    assert error(other, first) < 1.2 * one.residual
