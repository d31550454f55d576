"""The command `rpeg-calib validate`."""

import click

from rpegc.calibration.bench import bench_options
from rpegc.cli.console import HELP_OPTIONS, Console, console_options


@click.command("validate", context_settings=HELP_OPTIONS)
@click.argument("hardware")
@click.option(
    "-o", "--output", metavar="DIR", type=click.Path(file_okay=False),
    help="Write operators.json (what was measured), operators.csv, agreement.csv and scatter.png here.",
)  # fmt: skip
@click.option("--samples", metavar="FILE", help="Compare with operators measured before; measure nothing.")
@click.option(
    "--grid", metavar="FILE", help="Measure the operators of this grid instead of the default ones."
)
@bench_options
@click.option(
    "--aim", "given", multiple=True, metavar="NAME=VALUE",
    help="Aim at another value than by default; names are those of the aims below. [repeatable]",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit code 1 where an aim is missed.")
@click.option("--json", "as_json", is_flag=True, help="The statistics as one object on stdout.")
@console_options
def validate_command(
    *, console: Console, hardware: str, output: str | None, samples: str | None, grid: str | None,
    bench: list[str], given: tuple[str, ...], strict: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compare what HARDWARE, a file or a shipped name, predicts of single operators with what the runtime
    measures of them here: time, and peak memory of live tensors.

    Operators are roles, layouts, batches and lengths of a few models, none of which the file was calibrated
    with; on two processor cores they take twenty minutes. Under Slurm or torchrun they run on its workers.

    Aims by default: operators=60, time.mape=0.15, time.spearman=0.99, time.ordered=0.95, memory.mape=0.10
    (memory.spearman and memory.ordered have none). Exit code 1: faulty input, or with --strict a missed aim.

    \b
      rpeg-calib validate mine.json -o validation
      srun rpeg-calib validate mine.json -o validation
      rpeg-calib validate mine.json --samples validation/operators.json --strict --aim time.mape=0.25
    """
    from pathlib import Path

    from calib.hardware import load_hardware
    from ir_schema.envelope import pretty
    from rpegc.calibration.bench import measure, serves
    from rpegc.calibration.samples import load_samples, model_id
    from rpegc.calibration.validation import chosen_aims, compare, outcomes, reached
    from rpegc.calibration.validation_report import as_object, conditions, show, verdict, write_results
    from rpegc.failure import EXIT_INPUT, usage_error
    from rpegc.plots import check_plot
    from rpegc.stagefiles import make_directory, print_text, write_bytes

    def work() -> int:
        if samples is not None and (bench or grid):
            raise usage_error("E932", "`--samples` measures nothing, so nothing says how to measure")
        if samples is None and output is None:
            help = "`-o DIR`, or `--samples FILE` of what was measured before"
            raise usage_error("E932", "nothing says where the measurements go", help=help)
        aims = chosen_aims(given)
        found_hardware = load_hardware(hardware)
        directory = Path(output or ".")
        if output is not None:
            make_directory(directory)
            check_plot(str(directory / "scatter.png"))
        measured = samples or str(directory / "operators.json")
        if samples is None:
            measure("operators", measured, [*([grid] if grid else []), *bench, *["--quiet"] * console.quiet])
            if serves():
                return 0
        read = load_samples(measured)
        found = outcomes(read.operators, found_hardware)
        parts = compare(found)
        checked = reached(parts, aims)
        if output is not None:
            write_results(directory, found, read.operators, parts)
        models = {model_id(o.case.model) for o in found}
        if as_json:
            write_bytes("-", pretty(as_object(parts, checked, read.environment)))
        else:
            told = (conditions(found_hardware, read.environment, len(models)), show(parts), verdict(checked))
            print_text("\n\n".join(told))
        return EXIT_INPUT if strict and not all(a.met for a in checked) else 0

    return console.guard(work)
