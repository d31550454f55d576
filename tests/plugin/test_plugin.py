"""The example plugin, installed as a user would: its pass and cost model are used like the built-in ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ir_schema.envelope import decode_stage

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example"
PROBLEM = ROOT / "examples" / "ppo_13b_gh200.rpeg"
PLANNING = "search{method=concurrent},unroll,lower,cost,schedule"


def install(source: Path, target: Path, name: str, work: Path) -> None:
    """Build a copy of `source` as distribution `name` and install it into `target`, without a network."""
    copy = work / name
    shutil.copytree(source, copy)
    project = copy / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "rpeg-example"', f'name = "{name}"'))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(copy)],
        check=True,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    install(EXAMPLE, folder / "site", "rpeg-example", folder)
    return folder / "site"


@pytest.fixture(scope="module")
def rival(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second distribution that provides the same names."""
    folder = tmp_path_factory.mktemp("rival")
    install(EXAMPLE, folder / "site", "rpeg-rival", folder)
    return folder / "site"


def rpegc(*arguments: object, path: tuple[Path, ...], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from rpegc.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "NO_COLOR": "1"},
        check=False,
    )


def test_the_pass_is_listed_with_its_options(site: Path, tmp_path: Path) -> None:
    done = rpegc("passes", path=(site,), cwd=tmp_path)
    assert "keep one operator on one node" in done.stdout
    done = rpegc("passes", "pin", path=(site,), cwd=tmp_path)
    assert "problem -> problem, from rpeg-example 1.0" in done.stdout
    assert "vertex" in done.stdout
    assert "pin" not in rpegc("passes", path=(), cwd=tmp_path).stdout


def test_the_pass_runs_in_a_pipeline(site: Path, tmp_path: Path) -> None:
    pipeline = f"pin{{vertex=reward_inf,node=5,rack=1}},verify,{PLANNING}"
    done = rpegc(PROBLEM, "-p", pipeline, "--verify-each", "-o", "plan.json", path=(site,), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, plan = decode_stage((tmp_path / "plan.json").read_bytes())
    place = plan.configuration.plan["reward_inf"]
    assert (place.origin, place.extent) == ((1, 5, 0), (1, 1, 4))


def test_the_passes_own_errors_and_options_are_reported(site: Path, tmp_path: Path) -> None:
    done = rpegc(PROBLEM, "-p", f"pin{{vertex=x}},verify,{PLANNING}", path=(site,), cwd=tmp_path)
    assert done.returncode == 1
    assert "error[X101]: no vertex `x` to pin" in done.stderr
    done = rpegc(PROBLEM, "-p", f"pin{{nod=3}},verify,{PLANNING}", path=(site,), cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean `node`?" in done.stderr


def test_the_cost_model_counts_no_transfers(site: Path, tmp_path: Path) -> None:
    """The same graph costs the same as under `paper`, but for its network terms."""
    lowered = ("-O1", "--cost-model", "paper", "--emit", "lowered", "-o", "lowered.json")
    assert rpegc(PROBLEM, *lowered, path=(), cwd=tmp_path).returncode == 0
    costs = {}
    for model in ("paper", "paper_free_network"):
        options = ("-p", f"cost{{model={model}}}", "-o", f"{model}.json")
        done = rpegc("--from", "lowered.json", *options, path=(site,), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        costs[model] = decode_stage((tmp_path / f"{model}.json").read_bytes())[1].nodes
    network = {"tp", "pp", "dp", "latency", "bytes"}
    for before, after in zip(costs["paper"], costs["paper_free_network"], strict=True):
        assert before.parts_s.keys() == after.parts_s.keys()
        for part, seconds in before.parts_s.items():
            assert after.parts_s[part] == (0.0 if part in network else seconds)
    assert sum(n.time_ns for n in costs["paper"]) > sum(n.time_ns for n in costs["paper_free_network"])


def test_the_cost_model_guides_a_search(site: Path, tmp_path: Path) -> None:
    options = ("--budget", 20, "--cost-model", "paper_free_network", "--emit", "scheduled", "-o", "-", "-q")
    done = rpegc(PROBLEM, *options, path=(site,), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scheduled = decode_stage(done.stdout.encode())[1]
    assert scheduled.configuration.problem.options.cost_model == "paper_free_network"
    transfers = [n.finish_ns - n.start_ns for n in scheduled.nodes if n.kind == "Comm"]
    assert not any(transfers)


def test_an_unknown_cost_model_suggests_the_plugins(site: Path, tmp_path: Path) -> None:
    done = rpegc(PROBLEM, "--cost-model", "paper_fre_network", path=(site,), cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean `paper_free_network`?" in done.stderr


def test_two_distributions_of_one_name_are_both_named(site: Path, rival: Path, tmp_path: Path) -> None:
    done = rpegc(PROBLEM, "-p", f"pin,verify,{PLANNING}", path=(site, rival), cwd=tmp_path)
    assert done.returncode == 2
    assert "error[E925]" in done.stderr
    assert "by rpeg-example 1.0 and by rpeg-rival 1.0" in done.stderr
    options = '  options { cost_model = "paper_free_network" }\n'
    (tmp_path / "a.rpeg").write_text(
        PROBLEM.read_text().replace("graph ppo_13b {\n", "graph ppo_13b {\n" + options)
    )
    done = rpegc("check", "a.rpeg", path=(site, rival), cwd=tmp_path)
    assert done.returncode == 1
    assert "error[E302]" in done.stderr
    assert "rpeg-example and rpeg-rival" in done.stderr
