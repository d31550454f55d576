"""The command `rpeg-calib run`."""

import click

from rpegc.calibration.bench import bench_options
from rpegc.cli.console import HELP_OPTIONS, Console, console_options


@click.command("run", context_settings=HELP_OPTIONS)
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the hardware file.")
@click.option("--samples", metavar="FILE", help="Fit to what was measured before; measure nothing.")
@click.option("--keep-samples", metavar="FILE", help="Keep what is measured, with every repetition.")
@click.option(
    "--operators", metavar="FILE",
    help="Measure in the same rounds what `validate --samples FILE` compares, and keep it here.",
)  # fmt: skip
@bench_options
@click.option(
    "--onto", metavar="HARDWARE",
    help="File or shipped name for what cannot be measured here, such as tiers that are out of reach. "
    "[default: by the GPU's name, or cpu-2core]",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the result. [default: that of the file]")
@click.option("--plots", metavar="DIR", type=click.Path(file_okay=False), help="Draw every fit here.")
@click.option("--strict", is_flag=True, help="Findings fail, and nothing is written.")
@console_options
def run_command(
    *, console: Console, output: str, samples: str | None, keep_samples: str | None,
    operators: str | None, bench: list[str], onto: str | None, name: str | None, plots: str | None,
    strict: bool,
) -> int:  # fmt: skip
    """Measure this machine with the runtime and write its hardware file; on two processor cores it takes
    ten minutes. Under Slurm or torchrun it measures with the workers that these start.

    Standard error gets every parameter with the mean relative error of its fit, findings, and a verdict. Exit
    code 1: the machine cannot be measured, the samples cannot be used, or with --strict a finding.

    \b
      rpeg-calib run -o my-machine.json --plots fits
      rpeg-calib run -o my-machine.json --operators operators.json
      srun rpeg-calib run -o my-machine.json
      rpeg-calib run --samples machine.json -o my-machine.json --strict
    """
    import tempfile
    from contextlib import ExitStack
    from pathlib import Path

    from calib.hardware import encode_hardware, load_hardware
    from rpegc.calibration.bench import measure, serves
    from rpegc.calibration.draft import judged
    from rpegc.calibration.machine import calibrate
    from rpegc.calibration.pictures import check_pictures, draw
    from rpegc.calibration.report import show_changes
    from rpegc.calibration.samples import load_samples
    from rpegc.calibration.verdict import lent, verdict
    from rpegc.failure import EXIT_INPUT, usage_error
    from rpegc.stagefiles import check_writable, write_bytes

    def work() -> int:
        if samples is not None and (bench or keep_samples or operators):
            raise usage_error("E932", "`--samples` measures nothing, so nothing says how to measure")
        written = [Path(name) for name in (output, keep_samples, operators) if name is not None]
        if len(set(written)) < len(written):
            raise usage_error("E932", "two of `--output`, `--keep-samples` and `--operators` are one file")
        given = None if onto is None else load_hardware(onto)
        check_writable(output)
        if plots is not None:
            check_pictures(plots)
        with ExitStack() as stack:
            measured = samples or keep_samples
            if measured is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rpeg-calib-"))
                measured = str(Path(folder) / "samples.json")
            if samples is None:
                examined = [f"--operators={operators}"] * (operators is not None)
                measure("machine", measured, [*examined, *bench, *["--quiet"] * console.quiet])
                if serves():
                    return 0
            found = load_samples(measured)
        base = given or lent(found.environment)
        result = calibrate(found, base, name or Path(output).name.removesuffix(".json"))
        console.say(show_changes(result.changes))
        console.report(judged(result.findings, strict=strict))
        console.say(verdict(found, base, result))
        if plots is not None:
            draw(plots, result.curves)
        if strict and result.findings:
            return EXIT_INPUT
        write_bytes(output, encode_hardware(result.hardware))
        return 0

    return console.guard(work)
