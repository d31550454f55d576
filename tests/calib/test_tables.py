"""Which tables can be fitted, and what is said of the others."""

import pytest

from calib.tables import fit_collectives, fit_messages, read_table
from ir_schema.diagnostics import DiagnosticError

GEMM = b"system,m,n,k,latency_ms,source\na,1,2,3,0.1,x\na,2,2,3,0.2,x\nb,1,2,3,0.3,y\n"


def code(data, where=None, column=None):
    with pytest.raises(DiagnosticError) as caught:
        read_table(data, "t.csv", where or {}).numbers(column)
    (found,) = caught.value.diagnostics
    return found.code, found.message


def test_kinds_follow_from_columns():
    assert read_table(GEMM, "t.csv", {}).kind == "products"
    assert read_table(b"op,n_gpus,bytes,latency_us\nall_reduce,2,8,1\n", "t", {}).kind == "collectives"
    assert read_table(b"pair,bytes,bw_GBps\nGPU,8,1\n", "t", {}).kind == "messages"


def test_rows_are_chosen_by_columns_that_a_table_has():
    assert len(read_table(GEMM, "t.csv", {"system": ("a",), "layers": ("12",)}).rows) == 2
    assert len(read_table(GEMM, "t.csv", {"m": ("1", "2"), "system": ("b",)}).rows) == 1


def test_unusable_tables():
    assert code(b"a,b\n1,2\n")[0] == "E940"
    assert code(b"\xff\xfe")[0] == "E940"
    assert code(b"")[0] == "E940"
    assert code(GEMM, {"system": ("c",)}) == ("E941", "no row of `t.csv` has system=c")
    assert code(b"m,n,k,latency_ms\n", {}) == ("E941", "`t.csv` is empty")


@pytest.mark.parametrize("value", ["", "fast", "-1", "0", "nan", "inf"])
def test_measurements_are_positive_numbers(value):
    data = f"m,n,k,latency_ms\n1,2,3,0.1\n1,2,3,{value}\n".encode()
    found = code(data, column="latency_ms")
    assert found == ("E941", f"`t.csv`: chosen row 2 has latency_ms = {value!r}")


def test_what_a_table_lacks_is_told():
    assert code(b"m,n,k,latency_ms\n1,2,3,0.1\n1,2\n") == (
        "E941", "row 2 of `t.csv` has fewer values than the header names",
    )  # fmt: skip
    untimed = read_table(b"op,n_gpus,bytes\nall_reduce,2,8\n", "t.csv", {})
    with pytest.raises(DiagnosticError, match="E941"):
        fit_collectives(untimed)
    alone = read_table(b"op,n_gpus,bytes,time_us\nall_reduce,1,8,5\n", "t.csv", {})
    with pytest.raises(ValueError, match="a collective among 1 GPUs"):
        fit_collectives(alone)


def test_rows_between_nodes_are_another_tier():
    rows = ["op,n_nodes,n_gpus,bytes,time_us"]
    rows += [f"all_reduce,{n},8,{b},{10 + b / 1e5}" for n in (1, 2) for b in (1024, 10**6, 10**8)]
    table = read_table("\n".join(rows).encode(), "t.csv", {})
    assert set(fit_collectives(table)) == {("collective", "intra"), ("collective", "inter")}


def test_messages_between_processors_and_short_ones_do_not_count():
    rows = [
        "pair,bytes,bw_GBps",
        "CPU-to-CPU memory intra-node,4096,1",
        "GPU-to-GPU memory inter-node,8,0.0001",
    ]
    rows += [f"GPU-to-GPU memory inter-node,{b},{b / (2e-6 + b / 20e9) / 1e9}" for b in (1024, 10**5, 10**7)]
    ((place, found),) = fit_messages(read_table("\n".join(rows).encode(), "t.csv", {})).items()
    assert place == ("point_to_point", "inter")
    assert found.n == 3
    assert found.values["alpha"] == pytest.approx(2e-6, rel=0.05)
    assert 1 / found.values["beta"] == pytest.approx(20e9, rel=0.01)
