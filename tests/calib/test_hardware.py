import json
import math
from importlib import resources

import pytest

from calib.hardware import TRANSFERS, decode_hardware, encode_hardware, hardware_names, load_hardware
from ir_schema.base import TIERS
from ir_schema.diagnostics import DiagnosticError
from ir_schema.hardware import Hardware


def raw(name="h100"):
    return json.loads((resources.files("calib") / "hardware" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", hardware_names())
def test_shipped_files_are_nominal_and_say_where_every_figure_comes_from(name):
    hardware = load_hardware(name)
    assert hardware.provenance is not None
    assert hardware.provenance.nominal
    assert hardware.provenance.name == name
    written = set(raw(name)) - {"provenance", "nongemm_reference"}
    by_tier = {f"{field}.{tier}" for field in written & set(TRANSFERS) for tier in TIERS}
    assert set(hardware.provenance.sources) - written - by_tier <= set(Hardware.__struct_fields__)
    assert (written - set(TRANSFERS)) | by_tier <= set(hardware.provenance.sources)
    assert set(hardware.provenance.residuals) <= set(hardware.provenance.sources)


def test_the_common_machines_are_there():
    assert {"a100-80", "h100", "h200", "gh200", "b200", "cpu-2core"} <= set(hardware_names())


def test_faster_tiers_are_inside():
    for name in hardware_names():
        h = load_hardware(name)
        for tiers in (h.point_to_point, h.collective):
            assert tiers.intra.alpha <= tiers.inter.alpha <= tiers.rack.alpha or name == "gh200"
            assert tiers.inter.beta <= tiers.rack.beta


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(DiagnosticError) as caught:
        load_hardware("h10")
    (found,) = caught.value.diagnostics
    assert found.code == "E310"
    assert "did you mean `h100`" in found.help


def test_a_path_is_relative_to_the_directory(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(raw() | {"peak_flops": 1e12}))
    assert load_hardware("mine.json", tmp_path).peak_flops == 1e12
    assert load_hardware("./mine.json", tmp_path) == load_hardware("mine.json", tmp_path)
    with pytest.raises(DiagnosticError) as caught:
        load_hardware("other.json", tmp_path)
    assert caught.value.diagnostics[0].code == "E310"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"peak_flops": -1.0}, "hardware.peak_flops"),
        ({"memory_bytes": 0}, "hardware.memory_bytes"),
        ({"runtime_reserve": 1.0}, "hardware.runtime_reserve"),
        ({"gamma_M": -5}, "hardware.gamma_M"),
        ({"nongemm_reference": {"sequences": 0, "tokens": 8}}, "hardware.nongemm_reference.sequences"),
        (
            {"provenance": {"name": "mine", "residuals": {"gamma_K": -0.1}}},
            "hardware.provenance.residuals.gamma_K",
        ),
        (
            {"provenance": {"name": "mine", "spread": {"training": -0.1}}},
            "hardware.provenance.spread.training",
        ),
    ],
)
def test_impossible_values_are_named(change, path):
    with pytest.raises(DiagnosticError) as caught:
        decode_hardware(json.dumps(raw() | change).encode(), "mine")
    (found,) = caught.value.diagnostics
    assert found.code == "E311"
    assert found.labels[0].path == path


def test_every_impossible_value_is_reported():
    broken = raw() | {"peak_flops": 0, "gamma_K": -1}
    broken["collective"]["inter"]["beta"] = -1e-12
    with pytest.raises(DiagnosticError) as caught:
        decode_hardware(json.dumps(broken).encode(), "mine")
    assert len(caught.value.diagnostics) == 3


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff", b'{"peak_flops": "fast"}', b"null"])
def test_malformed_files_are_diagnosed(data):
    with pytest.raises(DiagnosticError) as caught:
        decode_hardware(data, "mine")
    assert caught.value.diagnostics[0].code == "E311"


def test_misspelt_keys_are_errors():
    with pytest.raises(DiagnosticError, match="peak_flop"):
        decode_hardware(json.dumps(raw() | {"peak_flop": 1e15}).encode(), "mine")


def test_spread_is_of_roles_and_transfers():
    with pytest.raises(DiagnosticError, match="decoding"):
        decode_hardware(
            json.dumps(raw() | {"provenance": {"name": "mine", "spread": {"decoding": 0.1}}}).encode(), "mine"
        )


def test_figures_are_finite():
    for name in hardware_names():
        h = load_hardware(name)
        assert all(math.isfinite(x) for x in (h.peak_flops, h.memory_bandwidth, h.memory_bytes))


@pytest.mark.parametrize("name", hardware_names())
def test_a_file_is_what_it_was_read_as(name):
    hardware = load_hardware(name)
    assert decode_hardware(encode_hardware(hardware), name) == hardware


@pytest.mark.parametrize("field", ["product_flops", "startup_seconds", "launch_seconds", "score_bytes"])
def test_what_a_file_need_not_give_is_not_negative(field):
    with pytest.raises(DiagnosticError) as caught:
        decode_hardware(json.dumps(raw() | {field: -1.0}).encode(), "mine")
    assert caught.value.diagnostics[0].labels[0].path == f"hardware.{field}"
