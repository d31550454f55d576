"""`rpegc model`: parameters of a model, without planning anything."""

import click

from rpegc.cli import names
from rpegc.cli.console import Console, console_options


@click.command("model", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False, shell_complete=names.models)
@click.option("--tp", "tensor", type=click.IntRange(min=1), default=1, help="Tensor parallel degree.")
@click.option("--pp", "pipeline", type=click.IntRange(min=1), default=1, help="Pipeline parallel degree.")
@click.option("--ep", "expert", type=click.IntRange(min=1), default=1, help="Expert parallel degree.")
@click.option(
    "--head", type=click.Choice(["lm", "scalar", "both"]), default="lm",
    help="What the model ends in: vocabulary, one value, or both.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@console_options
def model_command(
    *, console: Console, model: str | None, tensor: int, pipeline: int, expert: int, head: str, as_json: bool
) -> int:
    """Count the parameters of MODEL, a shipped name or a Hugging Face config.json; without it, list names.

    \b
      rpegc model llama-3.1-8b
      rpegc model ./config.json --tp 4 --pp 2 --json
    """
    from typing import cast

    from ir_schema.base import Head
    from rpegc.models import load_model, model_names
    from rpegc.models import report as reports
    from rpegc.stagefiles import print_text

    def work() -> None:
        if model is None:
            print_text("\n".join(model_names()))
            return
        spec = load_model(model, cast(Head, head))
        found = reports.report(model, spec, tensor, pipeline, expert)
        print_text(reports.as_json(found) if as_json else reports.as_text(found))

    return console.guard(work)
