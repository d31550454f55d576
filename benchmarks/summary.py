"""The studies' figures beside the paper's, as tables in `benchmarks/README.md`.

Figures of the paper stand in `paper.csv` with their places; ours are made from the tables in `results/`.
"""

import csv
import json
from pathlib import Path

import click

from benchmarks import ablations, case_study, convergence, stability, strong_scaling, weak_scaling
from benchmarks.study import HERE, Figure, Study, read_rows, written

STUDIES: tuple[Study, ...] = tuple(
    module.STUDY for module in (weak_scaling, strong_scaling, case_study, ablations, convergence, stability)
)
BEGIN, END = "<!-- figures: python -m benchmarks.summary -->", "<!-- end of figures -->"


def paper(study: str) -> dict[tuple[str, str], tuple[Figure, str]]:
    """The paper's figures of a study with their places, by case and name."""
    found = {}
    with (HERE / "paper.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["study"] == study:
                low, high = (float(row[end]) if row[end] else None for end in ("low", "high"))
                stated = Figure(row["case"], row["figure"], row["unit"], low, high)
                found[row["case"], row["figure"]] = stated, row["place"]
    return found


def table(study: Study, directory: Path) -> str:
    """A study's section: where its results come from, its plots, and its figures beside the paper's.

    `directory` holds the study's results. Figures that neither has are left out.
    """
    told = json.loads((directory / "provenance.json").read_text(encoding="utf-8"))
    stated = paper(study.name)
    lines = [
        f"### {study.about.splitlines()[0].rstrip('.')}",
        "",
        f"`{told['command']}`, {told['date']}, commit {told['commit']}, Python {told['python']}: "
        f"{told['seconds']} s in {told['processes']} processes on {told['cores']} cores.",
        "",
        "| case | figure | paper | here | place in the paper |",
        "| --- | --- | --- | --- | --- |",
    ]
    for ours in study.figures(read_rows(directory / "results.csv")):
        theirs, place = stated.get((ours.case, ours.figure), (None, ""))
        if theirs is not None or ours.high is not None:
            cells = (ours.case, ours.figure, written(theirs) if theirs else "", written(ours), place)
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"![{name}](results/{study.name}/{name}.png)" for name in study.plots), ""]
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=HERE / "results",
    help="Directory of the studies' results.  [default: benchmarks/results]",
)
@click.option(
    "--readme",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=HERE / "README.md",
    help="File whose tables are replaced.  [default: benchmarks/README.md]",
)
def main(results: Path, readme: Path) -> None:
    """Replace what stands between the marks in `readme`."""
    missing = [study.name for study in STUDIES if not (results / study.name / "results.csv").exists()]
    if missing:
        commands = ", ".join(f"`python -m benchmarks.{name}`" for name in missing)
        raise click.ClickException(f"{results} lacks results: run {commands}")
    text = readme.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise click.ClickException(
            f"{readme} lacks the lines `{BEGIN}` and `{END}` that the tables stand between"
        )
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    sections = "\n".join(table(study, results / study.name) for study in STUDIES)
    readme.write_text(f"{before}{BEGIN}\n\n{sections}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
