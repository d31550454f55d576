"""`rpeg-calib`: hardware files from tables, shown and compared."""

import json
from pathlib import Path

import msgspec
import pytest

from calib.hardware import decode_hardware, encode_hardware, load_hardware
from rpegc.calibration.cli import run

ROOT = Path(__file__).parents[2]
DATA = ROOT / "calib" / "data"
GEMM, NCCL = str(DATA / "gemm_bf16.csv"), str(DATA / "nccl_intranode.csv")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def products(
    folder: Path, slower: float = 1.0, sides: tuple[int, ...] = (512, 4096), name: str = "mine.csv"
) -> str:
    """A sweep on a machine of 100 TFLOP/s and 1 TB/s without saturation."""
    rows = ["m,n,k,latency_ms,source"]
    for m in (16, 256, 4096):
        for n in sides:
            for k in sides:
                seconds = 5e-6 + max(2 * m * n * k / 100e12, 2 * (m * n + n * k + m * k) / 1e12)
                rows.append(f"{m},{n},{k},{slower * seconds * 1e3},bench")
    (folder / name).write_text("\n".join(rows))
    return name


def test_measured_figures_replace_those_of_another_file(folder: Path, capfd) -> None:
    assert run(["fit", products(folder), "--onto", "h100", "--name", "mine", "-o", "mine.json"]) == 0
    base, found = load_hardware("h100"), load_hardware("./mine.json")
    assert found.product_flops == pytest.approx(100e12, rel=0.02)
    assert found.memory_bandwidth == pytest.approx(1e12, rel=0.02)
    assert found.startup_seconds == pytest.approx(5e-6, rel=0.02)
    # Whole layers are slower than their products, but not by much.
    assert 0.5 * found.product_flops < found.peak_flops < found.product_flops
    assert found.collective == base.collective
    assert found.memory_bytes == base.memory_bytes
    assert found.provenance.name == "mine"
    assert found.provenance.residuals["product_flops"] < 0.01
    assert "12 latencies of matrix products of mine.csv (bench)" in found.provenance.sources["product_flops"]
    said = capfd.readouterr().err
    assert "product_flops" in said
    assert "100 TFLOP/s" in said


def test_kept_parameters_stay(folder: Path) -> None:
    arguments = ["fit", products(folder), "--onto", "h100", "--keep", "memory_bandwidth", "-o", "mine.json"]
    assert run(arguments) == 0
    assert load_hardware("./mine.json").memory_bandwidth == load_hardware("h100").memory_bandwidth


def test_impossible_fits_are_said_and_fail_when_strict(folder: Path, capfd) -> None:
    table = products(folder, slower=0.01)
    assert run(["fit", table, "--onto", "h100", "-o", "mine.json"]) == 0
    said = capfd.readouterr().err
    assert "W941" in said
    assert "the data sheet of h100 says 9.894e+14" in said
    (folder / "mine.json").unlink()
    assert run(["fit", table, "--onto", "h100", "--strict", "-o", "mine.json"]) == 1
    assert not (folder / "mine.json").exists()


def test_a_machine_without_a_file_gets_one_that_says_whose_the_rest_is(folder: Path, capfd) -> None:
    arguments = ["fit", GEMM, "--where", "system=gb200", "--onto", "b200"]
    assert run([*arguments, "--name", "gb200", "-o", "gb200.json"]) == 0
    said = capfd.readouterr().err
    assert "not measured, taken from b200: memory_bytes" in said
    base, found = load_hardware("b200").provenance, load_hardware("./gb200.json").provenance
    assert found.name == "gb200"
    assert found.sources["memory_bytes"] == f"not measured, that of b200: {base.sources['memory_bytes']}"
    assert "gemm_bf16.csv" in found.sources["product_flops"]
    assert "collective.intra" in base.residuals
    assert "collective.intra" not in found.residuals
    # Of the same machine, the rest is what it was.
    assert run([*arguments, "-o", "again.json"]) == 0
    again = load_hardware("./again.json").provenance
    assert again.sources["memory_bytes"] == base.sources["memory_bytes"]
    assert again.residuals["collective.intra"] == base.residuals["collective.intra"]


def test_a_spread_of_whole_predictions_does_not_outlive_their_parameters(folder: Path) -> None:
    base = load_hardware("h100")
    p = msgspec.structs.replace(base.provenance, spread={"training": 0.1})
    (folder / "base.json").write_bytes(encode_hardware(msgspec.structs.replace(base, provenance=p)))
    assert run(["fit", products(folder), "--onto", "base.json", "-q", "-o", "mine.json"]) == 0
    assert load_hardware("./mine.json").provenance.spread == {}


SWEEP = [2.0**k for k in range(10, 30, 2)]


def collectives(folder: Path, name: str, **slower: float) -> str:
    """All-reduce, all-gather and reduce-scatter of a link of 300 GB/s, some of them so much slower."""
    rows = ["op,n_gpus,bytes,latency_us"]
    for op, twice in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        for p in (2, 8):
            for b in SWEEP:
                seconds = twice * ((p - 1) * 2e-6 + (p - 1) / p * b / 300e9) * slower.get(op, 1.0)
                rows.append(f"{op},{p},{b:.0f},{seconds * 1e6}")
    (folder / name).write_text("\n".join(rows))
    return name


def test_findings_name_parameters_and_say_what_to_do(folder: Path, capfd) -> None:
    """Findings of whole tables: strict ones fail, write nothing, and say what is wrong."""
    rows = Path(products(folder, sides=(512, 1024, 4096))).read_text().splitlines()
    Path("shallow.csv").write_text("\n".join([rows[0], *(r for r in rows[1:] if r.startswith("4096,"))]))
    Path("two.csv").write_text("\n".join(["system," + rows[0], *("ab"[i % 2] + "," + r for i, r in
                                                                enumerate(rows[1:]))]))  # fmt: skip
    for table, code, words in (
        ("shallow.csv", "W945", ("gamma_M", "products of other numbers of rows")),
        ("two.csv", "W946", ("2 values of system (a, b)", "--where system=a")),
        (products(folder, slower=100, name="slow.csv"), "W942", ("data sheet of h100 promises",)),
        (products(folder, slower=1e-6, name="quick.csv"), "W942", ("product_flops", "in SI units")),
        (collectives(folder, "switch.csv", all_reduce=0.55), "", ()),  # a switch may reduce
        (collectives(folder, "gather.csv", all_gather=8), "W942", ("`all_gather.intra` carries",)),
        (collectives(folder, "fast.csv", all_reduce=1e-2, all_gather=1e-2, reduce_scatter=1e-2), "W942",
         ("memory only",)),
    ):  # fmt: skip
        code_found = run(["fit", table, "--onto", "h100", "--strict", "-o", "mine.json"])
        said = capfd.readouterr().err
        assert code_found == (1 if code else 0), (table, said)
        assert (folder / "mine.json").exists() == (not code), table
        (folder / "mine.json").unlink(missing_ok=True)
        assert code in said, table
        assert all(word in said for word in words), (table, said)
        assert "Warning" not in said


def test_as_many_parameters_as_measurements_are_no_fit(folder: Path, capfd) -> None:
    rows = Path(products(folder)).read_text().splitlines()
    Path("five.csv").write_text("\n".join(rows[:6]))
    assert run(["fit", "five.csv", "--onto", "h100", "-o", "mine.json"]) == 1
    assert "5 products, and more than 5 are wanted" in capfd.readouterr().err


def test_poor_fits_are_said_and_fail_when_strict(folder: Path, capfd) -> None:
    rows = ["op,n_gpus,bytes,latency_us"]
    rows += [f"all_reduce,2,{2**i},{10 * 3 ** (i % 4)}" for i in range(10, 24)]
    (folder / "noise.csv").write_text("\n".join(rows))
    assert run(["fit", "noise.csv", "--onto", "h100", "-o", "mine.json"]) == 0
    assert "W940" in capfd.readouterr().err
    assert run(["fit", "noise.csv", "--onto", "h100", "--strict", "-q", "-o", "-"]) == 1
    out, said = capfd.readouterr()
    assert out == ""
    assert "error[W940]" in said  # what makes it fail is told whatever else is not


def test_mistakes_have_codes(folder: Path, capfd) -> None:
    (folder / "other.csv").write_text("a,b\n1,2\n")
    iteration = "hidden,layers,heads,seq_len,gbs,mbs,tp,pp,dp,iter_time_ms"
    for name, values in (
        ("none", "64,2,4,16,8,1,1,1,0,5"),
        ("few", "64,2,4,16,8,4,1,1,4,5"),
        ("endless", "64,2,4,16,inf,1,1,1,1,5"),
        ("half", "64,2,4,16,8,1,0.5,1,1,5"),
        ("uneven", "64,2,4,16,7,2,1,1,1,5"),
        ("deep", "64,2,4,16,8,1,1,4,1,5"),
        ("heads", "64,2,7,16,8,1,1,1,1,5"),
        ("sliced", "64,2,4,16,8,1,8,1,1,5"),
        ("short", "64,2,4,1,8,1,1,1,1,5"),
        ("vast", "64,2,4,16,1e30,1,1,1,1,5"),
    ):
        (folder / f"{name}.csv").write_text("\n".join([iteration, *[values] * 3]))
    for arguments, code, exit_code in (
        (["fit", "other.csv", "--onto", "h100"], "E940", 1),
        (["fit", GEMM, "--where", "system=none", "--onto", "h100"], "E941", 1),
        (["fit", products(folder), "--where", "m=16", "--where", "n=512", "--onto", "h100"], "E941", 1),
        (["fit", "none.csv", "--onto", "h100"], "E941", 1),
        (["fit", "few.csv", "--onto", "h100"], "E941", 1),
        (["fit", "endless.csv", "--onto", "h100"], "E941", 1),
        (["fit", "half.csv", "--onto", "h100"], "E941", 1),
        (["fit", "uneven.csv", "--onto", "h100"], "E941", 1),
        (["fit", "deep.csv", "--onto", "h100"], "E941", 1),
        (["fit", "heads.csv", "--onto", "h100"], "E941", 1),
        (["fit", "sliced.csv", "--onto", "h100"], "E941", 1),
        (["fit", "short.csv", "--onto", "h100"], "E941", 1),
        (["fit", "vast.csv", "--onto", "h100"], "E941", 1),
        (["fit", GEMM, "--where", "sytem=h100_sxm", "--onto", "h100"], "did you mean `system`", 2),
        (["fit", GEMM, "--where", "system=h100", "--onto", "h100"], "system is a100_sxm, h100_sxm", 1),
        (["fit", GEMM, "--where", "system", "--onto", "h100"], "E932", 2),
        (["fit", GEMM, "--keep", "speed", "--onto", "h100"], "E932", 2),
        (["fit", "absent.csv", "--onto", "h100"], "E911", 2),
        (["fit", GEMM, "--onto", "h1000"], "E310", 1),
        (["fit", GEMM], "E932", 2),
        (["show", "h10"], "E310", 1),
        (["diff", "h100", "absent.json"], "E310", 2),
    ):
        assert run(arguments) == exit_code, arguments
        assert code in capfd.readouterr().err, arguments


def test_a_file_is_shown_with_errors_and_sources(folder: Path, capfd) -> None:
    assert run(["show", "gh200"]) == 0
    shown = capfd.readouterr().out
    hardware = load_hardware("gh200")
    assert "nominal" in shown.splitlines()[0]
    for source in hardware.provenance.sources.values():
        assert source in shown
    assert f"{100 * hardware.provenance.residuals['point_to_point.intra']:.1f} %" in shown
    assert run(["show", "gh200", "--json"]) == 0
    assert decode_hardware(capfd.readouterr().out.encode(), "gh200") == hardware


def test_differences_are_told_with_their_factor(folder: Path, capfd) -> None:
    assert run(["diff", "h100", "h100"]) == 0
    assert capfd.readouterr().out == "no parameter differs\n"
    mine = msgspec.structs.replace(load_hardware("h100"), gamma_M=134.1, all_gather=None)
    (folder / "mine.json").write_bytes(msgspec.json.encode(mine))
    assert run(["diff", "h100", "mine.json"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "gamma_M", "all_gather.intra", "all_gather.inter", "all_gather.rack",
    ]  # fmt: skip
    assert lines[1].split()[-1] == "2"
    assert run(["diff", "h100", "mine.json", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["gamma_M"] == {"before": load_hardware("h100").gamma_M, "after": 134.1}
    assert found["all_gather.inter"]["after"] is None


def same(name: str, folder: Path, monkeypatch, *arguments: str) -> None:
    """Fitting the tables onto the shipped file leaves it as it is."""
    monkeypatch.chdir(ROOT)
    out = folder / "again.json"
    assert run(["fit", *arguments, "--onto", name, "-q", "-o", str(out)]) == 0
    assert decode_hardware(out.read_bytes(), name) == load_hardware(name)


@pytest.mark.parametrize("name", ["h100", "h200", "b200"])
def test_shipped_files_are_what_the_tables_give(name: str, tmp_path: Path, monkeypatch) -> None:
    tables = ["calib/data/gemm_bf16.csv", "calib/data/nccl_intranode.csv"]
    same(name, tmp_path, monkeypatch, *tables, "--where", f"system={name}_sxm")


def test_the_shipped_gh200_is_what_the_tables_give(tmp_path: Path, monkeypatch) -> None:
    tables = ["gemm_bf16.csv", "nccl_gh200_slingshot_2node.csv", "p2p_gh200_mpich.csv"]
    same(
        "gh200", tmp_path, monkeypatch, *(f"calib/data/{t}" for t in tables), "--where", "system=h100_sxm",
        "--where", "config=tuned aws-ofi-nccl", "--keep", "memory_bandwidth",
    )  # fmt: skip


@pytest.mark.slow
def test_the_shipped_a100_is_what_the_tables_give(tmp_path: Path, monkeypatch) -> None:
    tables = ["gemm_bf16.csv", "nccl_intranode.csv", "vtrain_train_single_a100.csv"]
    same(
        "a100-80", tmp_path, monkeypatch, *(f"calib/data/{t}" for t in tables), "--where", "system=a100_sxm",
        "--where", "layers=12,24",
    )  # fmt: skip
