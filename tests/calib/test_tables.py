"""Which tables can be fitted, and what is said of the others."""

import pytest

from calib.tables import fit_collectives, fit_messages, fit_products, mixed, read_table
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
    assert code(b"m,n,k,latency_ms\n1,2,3,0,5\n") == (
        "E941", "row 1 of `t.csv` has more values than the header names",
    )  # fmt: skip
    untimed = read_table(b"op,n_gpus,bytes\nall_reduce,2,8\n", "t.csv", {})
    with pytest.raises(ValueError, match="neither column `latency_us` nor `time_us`"):
        fit_collectives(untimed)
    alone = read_table(b"op,n_gpus,bytes,time_us\nall_reduce,1,8,5\n", "t.csv", {})
    with pytest.raises(ValueError, match="a collective among 1 GPUs"):
        fit_collectives(alone)


def test_tables_as_spreadsheets_write_them():
    table = read_table(b"\xef\xbb\xbfm, n ,k,latency_ms\r\n\r\n1,2,3,0.1\r\n", "t.csv", {"m": ("1",)})
    assert table.kind == "products"
    assert table.numbers("n") == [2.0]
    for data, help in (
        (b"m;n;k;latency_ms\n1;2;3;0,5\n", "separated by commas"),
        (b"m,n,k,latency_us\n1,2,3,5\n", "to be a table of products it lacks latency_ms"),
        (b"m,n,k,latency_ms,m\n1,2,3,5,1\n", "keep one"),
    ):
        with pytest.raises(DiagnosticError) as caught:
            read_table(data, "t.csv", {})
        (found,) = caught.value.diagnostics
        assert found.code == "E940"
        assert help in found.help


def test_what_counts_as_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"`op` says allreduce, alltoall, and none of all_reduce"):
        fit_collectives(read_table(b"op,n_gpus,bytes\nallreduce,2,8\nalltoall,2,8\n", "t", {}))
    with pytest.raises(DiagnosticError, match="n_nodes = 'two'"):
        fit_collectives(read_table(b"op,n_gpus,n_nodes,bytes\nall_reduce,2,two,8\n", "t", {}))
    for pair, size in (("CPU-to-CPU intra-node", 4096), ("GPU-to-GPU intra-node", 8), ("D2D", 4096)):
        with pytest.raises(ValueError, match="what counts begins with GPU"):
            fit_messages(read_table(f"pair,bytes,bw_GBps\n{pair},{size},1\n".encode(), "t", {}))
    with pytest.raises(DiagnosticError, match="bytes = '1 KiB'"):
        fit_messages(read_table(b"pair,bytes,bw_GBps\nGPU-to-GPU intra-node,1 KiB,1\n", "t", {}))


def test_elements_are_as_wide_as_a_table_says():
    seconds, one = 2e-6, "m,n,k,latency_ms,gemm_dtype\n"
    for dtype, width in (("float32", 4), ("bfloat16", 2), ("half", 2), ("", 2), ("fp8_e4m3", 1)):
        # Nothing but traffic at 1 TB/s.
        rows = [(n, k) for n in (64, 256, 1024) for k in (512, 4096)]
        data = one + "".join(
            f"1,{n},{k},{1e3 * (seconds + width * (n + n * k + k) / 1e12)},{dtype}\n" for n, k in rows
        )
        found = fit_products(read_table(data.encode(), "t.csv", {}))
        assert found.values["memory_bandwidth"] == pytest.approx(1e12, rel=0.02), dtype
    with pytest.raises(DiagnosticError, match="gemm_dtype = 'posit'"):
        fit_products(read_table(f"{one}1,2,3,4,posit\n".encode(), "t.csv", {}))


def test_rows_of_several_machines_are_seen():
    assert dict(mixed(read_table(GEMM, "t.csv", {}))) == {"system": ["a", "b"]}
    assert not dict(mixed(read_table(GEMM, "t.csv", {"system": ("a",)})))


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
