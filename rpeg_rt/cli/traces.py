"""What the command line does with traces: check one against its plan, and show one."""

from pathlib import Path

import click
import msgspec

from rpeg_rt.cli.run import CONTEXT, FILE


@click.command("verify", context_settings=CONTEXT)
@click.argument("trace", type=FILE)
@click.argument("plan", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def verify_command(*, trace: Path, plan: Path, as_json: bool) -> None:
    """Check that TRACE shows the execution of PLAN: bindings, layouts, dependences, exclusivity, versions
    and staleness, bytes and rows moved, phases, order, and the integrity of both files."""
    from rpeg_rt.failure import VerificationError
    from rpeg_rt.verify import verify_file

    verdict = verify_file(trace, plan)
    if as_json:
        click.echo(msgspec.json.encode(verdict).decode())
    elif not verdict.violations:
        ended = (
            ""
            if verdict.exit_code == 0
            else f"; the run itself ended early with exit code {verdict.exit_code}"
        )
        click.echo(f"verified: {verdict.nodes} nodes follow plan {verdict.plan[:16]}{ended}")
    if verdict.violations:
        raise VerificationError(verdict.violations)


@click.command("trace", context_settings=CONTEXT)
@click.argument("trace", type=FILE)
@click.option(
    "--perfetto", type=FILE, required=True, help="Write Chrome trace JSON here (opens in ui.perfetto.dev)."
)
def trace_command(*, trace: Path, perfetto: Path) -> None:
    """Convert TRACE to a timeline with one track per GPU."""
    from ir_schema.trace import BrokenTraceError
    from rpeg_rt.failure import FileError
    from rpeg_rt.perfetto import write_perfetto
    from rpeg_rt.trace import read_trace

    try:
        write_perfetto(read_trace(trace), perfetto)
    except BrokenTraceError as exc:
        raise FileError(f"{trace}: {exc}") from exc
