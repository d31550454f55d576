"""What a launcher makes of a command: the controller, a task that serves it, or (without one) all of it."""

import os
from pathlib import Path

import click

from rpeg_rt.launch import Launch, detect


def controller(
    plan: Path | None, interface: str | None, port: int | None, **own: int | None
) -> Launch | None:
    """The launcher's task that this process is, where that is the controller; None without a launcher.

    Any other task serves the controller (which measures if there is no `plan`), and ends here. `own` is the
    option that says how many workers the command starts by itself. Raises UsageError for options that are of
    no use here, RunError for what keeps a task from serving.
    """
    launch = detect(os.environ)
    if launch is None:
        if interface is not None or port is not None:
            raise click.UsageError("--interface and --port are for workers that Slurm or torchrun starts")
        return None
    for name, value in own.items():
        if value is not None:
            raise click.UsageError(
                f"--{name} is for workers that the command starts by itself; here {launch.launcher} starts "
                "them"
            )
    if launch.task > 0:
        from rpeg_rt.joining import serve

        serve(launch, plan, interface, port)
        click.get_current_context().exit()
    return launch
