"""Broken measurements are said, each with what to do, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ir_schema.samples import (
    Memory,
    Samples,
    encode_samples,
)
from rpegc.calibration.cli import run
from rpegc.calibration.machine import calibrate
from tests.rpegc.calibration.planted import BASE, SAMPLES

replace = msgspec.structs.replace


def scaled(part: str, factor: float) -> Callable[[Samples], Samples]:
    def change(samples: Samples) -> Samples:
        told = tuple(replace(s, seconds=tuple(factor * t for t in s.seconds)) for s in getattr(samples, part))
        return replace(samples, **{part: told})

    return change


def each(
    part: str, seconds: Callable[[int, tuple[float, ...]], tuple[float, ...]]
) -> Callable[[Samples], Samples]:
    def change(samples: Samples) -> Samples:
        told = tuple(replace(s, seconds=seconds(i, s.seconds)) for i, s in enumerate(getattr(samples, part)))
        return replace(samples, **{part: told})

    return change


def reversed_sizes(samples: Samples) -> Samples:
    times = [s.seconds for s in samples.transfers][::-1]
    return replace(
        samples,
        transfers=tuple(replace(s, seconds=t) for s, t in zip(samples.transfers, times, strict=True)),
    )


BROKEN = {
    "products in milliseconds": scaled("products", 1e3),
    "products in microseconds": scaled("products", 1e-6),
    "copies in milliseconds": scaled("copies", 1e3),
    "transfers in microseconds": scaled("transfers", 1e6),
    "operators in milliseconds": scaled("operators", 1e3),
    "operators in microseconds": scaled("operators", 1e-6),
    "all of them in milliseconds": lambda s: scaled("products", 1e3)(
        scaled("operators", 1e3)(scaled("transfers", 1e3)(scaled("copies", 1e3)(s)))
    ),
    "constant products": each("products", lambda _, s: (1e-3,) * len(s)),
    "constant transfers": each("transfers", lambda _, s: (1e-3,) * len(s)),
    "constant operators": each("operators", lambda _, s: (0.1,) * len(s)),
    "falling transfers": reversed_sizes,
    "random operators": each("operators", lambda i, s: tuple(x * (0.1, 10.0)[i % 2] for x in s)),
    "unsteady repetitions": each(
        "operators", lambda i, s: tuple(x * (0.2, 1.0, 5.0)[k % 3] for k, x in enumerate(s))
    ),
    "no operators": lambda s: replace(s, operators=()),
    "no training": lambda s: replace(
        s, operators=tuple(o for o in s.operators if o.case.role != "training")
    ),
    "no products": lambda s: replace(s, products=()),
    "one product": lambda s: replace(s, products=s.products[:1]),
    "no copies": lambda s: replace(s, copies=()),
    "a memory that is full": lambda s: replace(s, memory=Memory(total_bytes=10**9, idle_bytes=10**9)),
    "no memory": lambda s: replace(s, memory=None),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_measurements_are_said_and_fail_when_strict(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rpegc.calibration.parts._ROUNDS", 4)
    Path("samples.json").write_bytes(encode_samples(BROKEN[what](SAMPLES)))
    arguments = ["run", "--samples", "samples.json", "-o", "mine.json"]
    assert run([*arguments, "--strict"]) == 1
    said = capfd.readouterr().err
    assert any(code in said for code in ("W940", "W942", "W943", "W944")), said
    assert "Traceback" not in said
    assert "verdict: good" not in said
    assert not Path("mine.json").exists()


def only(part: str, chosen: Callable[[Any], bool]) -> Callable[[Samples], Samples]:
    return lambda s: replace(s, **{part: tuple(x for x in getattr(s, part) if chosen(x))})


def made(part: str, primitive: str = "", **fields: object) -> Callable[[Samples], Samples]:
    def change(samples: Samples) -> Samples:
        told = (
            replace(x, **fields) if not primitive or x.primitive == primitive else x
            for x in getattr(samples, part)
        )
        return replace(samples, **{part: tuple(told)})

    return change


def primitive(name: str, factor: float) -> Callable[[Samples], Samples]:
    def change(samples: Samples) -> Samples:
        told = (
            replace(t, seconds=tuple(factor * x for x in t.seconds)) if t.primitive == name else t
            for t in samples.transfers
        )
        return replace(samples, transfers=tuple(told))

    return change


SAID: dict[str, tuple[Callable[[Samples], Samples], str, tuple[str, ...]]] = {
    "one width": (only("products", lambda p: p.inner == 512), "W945", ("`gamma_K`", "other widths")),
    "one number of rows": (only("products", lambda p: p.rows == 512), "W945", ("`gamma_M`", "of rows")),
    "few rows": (only("products", lambda p: p.rows <= 32), "W945", ("`gamma_K`",)),
    "one size": (only("transfers", lambda t: t.nbytes == 1 << 20), "W945", ("alpha of `collective.intra`",)),
    "short transfers": (only("transfers", lambda t: t.nbytes < 1 << 15), "W945", ("beta of", "longer")),
    "a gather that is too fast": (primitive("all_gather", 1e-2), "W942", ("`all_gather.intra` carries",)),
    "a gather that is too slow": (primitive("all_gather", 10), "W942", ("over the same links",)),
    "messages faster than memory": (primitive("point_to_point", 5e-3), "W942", ("memory only",)),
    "copies that norms contradict": (scaled("copies", 0.02), "W942", ("norms and sums",)),
    "norms that copies contradict": (scaled("layers", 1e-3), "W942", ("norms and sums",)),
    "one repetition": (each("copies", lambda _, s: s[:1]), "W944", ("copies have 1 repetitions",)),
    "unsteady copies": (
        each("copies", lambda _, s: tuple(x * (0.2, 1.0, 5.0)[k % 3] for k, x in enumerate(s))),
        "W944", ("half of the 1 copies",),
    ),
    "no gathers": (only("transfers", lambda t: t.primitive != "all_gather"), "W943", ("all-gather",)),
    "no transfers": (only("transfers", lambda _: False), "W943", ("all-reduce at tier intra",)),
    "no norms": (only("layers", lambda _: False), "W943", ("norms and residual sums",)),
    "nodes apart": (
        lambda s: replace(s, environment=replace(s.environment, machines=("a", "b"), workers=(2, 2))),
        "W943", ("communication between nodes",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SAID)
def test_what_is_wrong_is_said_with_what_to_do(what: str) -> None:
    change, code, words = SAID[what]
    alone = replace(SAMPLES, operators=())
    usual = {d.message for d in calibrate(alone, BASE, "mine").findings}
    told = [d for d in calibrate(change(alone), BASE, "mine").findings if d.message not in usual]
    mine = [f"{d.message}: {d.help}" for d in told if d.code == code]
    assert any(all(w in text for w in words) for text in mine), told
    assert all(d.help for d in told)


def test_an_interruption_moves_nothing() -> None:
    once = lambda _, s: (100 * s[0], *s[1:])  # noqa: E731
    disturbed = replace(SAMPLES, operators=())
    for part in ("products", "copies", "layers", "transfers"):
        disturbed = each(part, once)(disturbed)
    usual = calibrate(replace(SAMPLES, operators=()), BASE, "mine")
    result = calibrate(disturbed, BASE, "mine")
    assert replace(result.hardware, provenance=None) == replace(usual.hardware, provenance=None)
    assert result.findings == usual.findings


def test_layers_far_slower_than_their_products_are_said() -> None:
    result = calibrate(
        scaled("products", 0.01)(replace(SAMPLES, operators=SAMPLES.operators[-1:])), BASE, "mine"
    )
    assert any(d.code == "W942" and "whole layers run at" in d.message for d in result.findings)


def placed(**fields: object) -> Callable[[Samples], Samples]:
    def change(s: Samples) -> Samples:
        case = s.operators[0].case
        wrong = replace(case, placement=replace(case.placement, **fields))
        return replace(s, operators=(replace(s.operators[0], case=wrong), *s.operators[1:]))

    return change


def of_model(**fields: object) -> Callable[[Samples], Samples]:
    def change(s: Samples) -> Samples:
        case = s.operators[0].case
        wrong = replace(case, model=replace(case.model, **fields))
        return replace(s, operators=(replace(s.operators[0], case=wrong), *s.operators[1:]))

    return change


def around(**fields: object) -> Callable[[Samples], Samples]:
    return lambda s: replace(s, environment=replace(s.environment, **fields))


def over(**fields: object) -> Callable[[Samples], Samples]:
    def change(s: Samples) -> Samples:
        case = s.operators[0].case
        wrong = replace(case, workload=replace(case.workload, **fields))
        return replace(s, operators=(replace(s.operators[0], case=wrong), *s.operators[1:]))

    return change


REFUSED = {
    "negative times": each("products", lambda *_: (-1.0,)),
    "no time": each("copies", lambda *_: (0.0,)),
    "nan": each("products", lambda *_: (float("nan"),)),
    "no repetitions": each("layers", lambda *_: ()),
    "no rows": made("products", rows=0),
    "negative columns": made("products", columns=-5),
    "elements of no width": made("products", width=0),
    "no bytes": made("copies", nbytes=0),
    "no tokens": made("layers", tokens=0),
    "a transfer of nothing": made("transfers", nbytes=0),
    "a transfer beyond all": made("transfers", nbytes=2**61),
    "a collective of one": made("transfers", participants=1, per_node=1),
    "a message among four": made("transfers", "point_to_point", participants=4),
    "more on a node than there are": made("transfers", per_node=9),
    "no tensors": made("operators", tensor_bytes=0),
    "an empty process": made("operators", process_bytes=0),
    "no processors": around(processors=0),
    "no threads": around(threads=0),
    "no workers": around(workers=()),
    "workers nowhere": around(machines=()),
    "negative memory": lambda s: replace(s, memory=Memory(total_bytes=-1, idle_bytes=0)),
    "no hidden values": of_model(hidden=0),
    "no layers": of_model(layers=0),
    "no heads": of_model(attention_heads=0),
    "no vocabulary": of_model(vocabulary=0),
    "a model beyond all": of_model(layers=2**40),
    "no replicas": placed(data_parallel=0),
    "more stages than layers": placed(pipeline_parallel=50, extent=(1, 1, 50)),
    "heads that cannot be divided": placed(tensor_parallel=3, extent=(1, 1, 3)),
    "no microbatches": placed(microbatches=0),
    "more microbatches than sequences": placed(microbatches=10**9),
    "workers that are not there": placed(extent=(1, 1, 7)),
    "no prompts": over(prompts=0),
    "no responses": over(response_length=0),
    "responses beyond all": over(response_length=10**12),
}


@pytest.mark.parametrize("what", REFUSED)
def test_samples_that_cannot_be_are_refused(
    what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "samples.json", tmp_path / "mine.json"
    path.write_bytes(encode_samples(REFUSED[what](SAMPLES)))
    assert run(["run", "--samples", str(path), "-o", str(output), "-q"]) == 1
    assert "E951" in capfd.readouterr().err
    assert not output.exists()
    if "operators" in what or REFUSED[what](SAMPLES).operators != SAMPLES.operators:
        assert run(["validate", "cpu-2core", "--samples", str(path), "-q"]) == 1
        assert "E951" in capfd.readouterr().err
