"""Small versions of the studies: every command runs, and its figures follow from the table it writes."""

import json
import shutil

import pytest
from click.testing import CliRunner

from benchmarks import strong_scaling, summary
from benchmarks.ablations import SWITCHES, losses
from benchmarks.study import RESULTS, Figure, command, read_rows, write_rows, written

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Directory with the small results of all studies."""
    directory = tmp_path_factory.mktemp("results")
    for study in summary.STUDIES:
        arguments = ["--small", "--jobs", "1", "--output", str(directory / study.name)]
        done = CliRunner().invoke(command(study), arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return directory


@pytest.mark.parametrize("study", summary.STUDIES, ids=lambda study: study.name)
def test_a_study_writes_table_plots_and_provenance(study, results):
    rows = read_rows(results / study.name / "results.csv")
    assert rows
    for row in rows:
        assert set(RESULTS) <= set(row)
        assert (row["failure"] is None) == (row["tokens_per_s"] is not None)
    for name in study.plots:
        assert (results / study.name / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((results / study.name / "provenance.json").read_text())
    assert f"benchmarks.{study.name} --budget {study.small.budget}" in told["command"]


@pytest.mark.parametrize("study", summary.STUDIES, ids=lambda study: study.name)
def test_every_figure_of_the_paper_has_its_counterpart(study, results):
    ours = {
        (f.case, f.figure): f.unit for f in study.figures(read_rows(results / study.name / "results.csv"))
    }
    for key, (stated, place) in summary.paper(study.name).items():
        assert ours.get(key) == stated.unit, key
        assert place


def test_results_do_not_depend_on_the_number_of_processes(results, tmp_path):
    first = read_rows(results / "strong_scaling" / "results.csv")
    arguments = ["--small", "--jobs", "2", "--output", str(tmp_path)]
    assert CliRunner().invoke(command(strong_scaling.STUDY), arguments).exit_code == 0
    again = read_rows(tmp_path / "results.csv")
    for row in (*first, *again):
        row.pop("seconds")
    assert again == first


def test_searched_plans_are_no_worse_than_the_heuristics(results):
    rows = read_rows(results / "weak_scaling" / "results.csv")
    plain = [row for row in rows if row["objective"] == "throughput"]
    assert any(row["greedy"] for row in plain)
    for row in plain:
        assert row["tokens_per_s"] >= max(row["greedy"] or 0, row["concurrent"] or 0)


def test_the_summary_puts_figures_beside_the_papers(results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{summary.BEGIN}\nold\n{summary.END}\nafter\n")
    done = CliRunner().invoke(summary.main, ["--results", str(results), "--readme", str(readme)])
    assert done.exit_code == 0, done.output
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| A2 | average loss | 16.1 % |" in text


def test_the_summary_says_which_results_are_missing(results, tmp_path):
    shutil.copytree(results / "stability", tmp_path / "stability")
    readme = tmp_path / "README.md"
    readme.write_text(f"{summary.BEGIN}\n{summary.END}\n")
    done = CliRunner().invoke(summary.main, ["--results", str(tmp_path), "--readme", str(readme)])
    assert done.exit_code == 1
    assert "python -m benchmarks.weak_scaling" in done.output
    assert "benchmarks.stability" not in done.output


def test_rows_are_read_as_they_were_written(tmp_path):
    row = {"case": "7/7/7", "gpus": 8} | dict.fromkeys(RESULTS) | {"tokens_per_s": 1.5, "evaluations": 3}
    write_rows(tmp_path / "rows.csv", [row])
    assert read_rows(tmp_path / "rows.csv") == [row]


def test_losses_are_of_the_mean_over_the_seeds_that_found_a_plan():
    def row(name, score):
        return {
            "scenario": "DEEP",
            "ablation": name,
            "tokens_per_s": score,
            "failure": None if score else "E420",
        }

    rows = [row("full", 10.0), row("full", 30.0), row("A1", 15.0), row("A1", None)]
    assert losses(rows) == {("DEEP", "A1"): pytest.approx(25.0)}
    assert len(SWITCHES) == 10


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5.0, 60.0, "5 to 60 %"),
        (7.0, 7.0, "7 %"),
        (None, 25.0, "at most 25 %"),
        (None, None, "–"),
        (float("inf"), float("inf"), "never"),
    ],
)
def test_figures_in_words(low, high, text):
    assert written(Figure("case", "figure", "%", low, high)) == text
