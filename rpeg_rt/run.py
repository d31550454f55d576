"""One run from the plan's file to its outcome: load, preflight, execute, verify."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from ir_schema.problem import RunConfig
from ir_schema.trace import Evaluation
from rpeg_rt.allocation import arrange, gather, local_crew
from rpeg_rt.beginning import FRESH
from rpeg_rt.checkpoints.export import Origin, is_from, make_room, unwritable
from rpeg_rt.checkpoints.start import examine
from rpeg_rt.controller import Controller
from rpeg_rt.evaluation import not_examined
from rpeg_rt.failure import AlreadyDone, FileError, VerificationError
from rpeg_rt.fleet import Fleet
from rpeg_rt.host import Host
from rpeg_rt.joining import launched_fleet, local_fleet
from rpeg_rt.launch import Launch
from rpeg_rt.load import Plan, load_plan
from rpeg_rt.metrics import JsonLines, Meter, Sink, StepMetrics, TensorBoard
from rpeg_rt.patience import Patience
from rpeg_rt.preflight import check, plausible, this_machine
from rpeg_rt.progress import StepReport
from rpeg_rt.signals import complete
from rpeg_rt.snapshots.directory import has_snapshots, refuse_others
from rpeg_rt.snapshots.resuming import Resumed, resume
from rpeg_rt.snapshots.saver import Saver
from rpeg_rt.summary import Outcome
from rpeg_rt.trace import TraceWriter, read_trace
from rpeg_rt.verify import verify_trace


@dataclass(frozen=True)
class Settings:
    """What the command line adds to a plan, and the launcher; None takes the plan's own value, and of a
    network interface or port what follows from where the tasks are."""

    steps: int | None = None
    seed: int | None = None
    slots: int | None = None
    trace: Path | None = None
    metrics: Path | None = None
    tensorboard: Path | None = None
    data: Path | None = None
    save: Path | None = None
    save_every: int | None = None
    keep: int = 2
    resume: Path | None = None
    eval_every: int | None = None
    node_seconds: float | None = None
    interface: str | None = None
    port: int | None = None
    launch: Launch | None = None


def execute(
    path: Path,
    settings: Settings,
    progress: Callable[[StepMetrics, int], None],
    warn: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run the plan in `path`. Raises RunError, or AlreadyDone for a run that is to go on and has
    nothing left. `progress` is told each finished step and their number, `warn` what the plan asks for and
    does not get, `note` what is worth knowing of where models start."""
    plan = load_plan(path)
    with ExitStack() as stack:
        fleet = None
        if settings.launch is not None:
            fleet = launched_fleet(settings.launch, plan.id, settings.interface, settings.port)
            stack.callback(fleet.close)
        return _execute(plan, settings, fleet, progress, warn, note)


def _execute(
    plan: Plan,
    settings: Settings,
    fleet: Fleet | None,
    progress: Callable[[StepMetrics, int], None],
    warn: Callable[[str], None],
    note: Callable[[str], None],
) -> Outcome:
    """Run a plan on the tasks of a launcher, which join `fleet`, or (None) on workers of its own."""
    plausible(plan.executable)
    problem, directory = plan.executable.problem, settings.data or _data_directory(plan)
    run = problem.run or RunConfig()  # `check` refuses a plan without
    steps = run.steps if settings.steps is None else settings.steps
    resumed = _resumed(plan, settings, steps, warn)
    checkpoints = examine(problem, directory)
    findings = checkpoints.findings + ([] if settings.save is None else unwritable(problem))
    findings += [] if resumed is None else resumed.findings
    machine = this_machine(settings.slots) if fleet is None else None
    begins = FRESH if resumed is None else resumed.beginning
    realisation = check(plan.executable, machine, findings, begins)
    seed = run.seed if settings.seed is None else settings.seed
    seed = seed if resumed is None else resumed.manifest.seed
    if steps < 1:
        raise FileError(f"a run of {steps} steps is none; give --steps 1 or more")
    exports = _exports(plan, settings, Origin(plan=plan.id, seed=seed, steps=steps), resumed)
    if settings.save is not None:
        make_room(settings.save, exports)
        refuse_others(settings.save, None if resumed is None else resumed.place.parent)
    eval_every = settings.eval_every
    if eval_every is not None and run.eval_prompts is None:
        raise FileError(
            "--eval-every needs held-out prompts: give `eval_prompts` in the file's `run` section"
        )
    if run.eval_prompts is not None and (reason := not_examined(realisation)):
        warn(f"the held-out prompts {run.eval_prompts} are not used: {reason}")
        eval_every = None
    if settings.resume is not None and not exports and (settings.save is not None or begins.step == steps):
        if fleet is not None:
            gather(fleet)  # so that the tasks can be dismissed
        there = "" if settings.save is None else f", and its trained models are in {settings.save}"
        raise AlreadyDone(f"nothing is left to do: the run has its {steps} steps{there}")
    for text in [*checkpoints.notes, *([] if resumed is None else resumed.notes)]:
        note(text)
    finished: list[StepMetrics] = []
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for destination, kind in ((settings.metrics, JsonLines), (settings.tensorboard, TensorBoard)):
            if destination is not None:
                sinks.append(kind(destination, begins.step))
                stack.callback(sinks[-1].close)
        if fleet is None:
            crew = local_crew(local_fleet(realisation.world, plan.id), realisation.world)
        else:
            gather(fleet)
            crew = arrange(realisation, fleet)
        trace = settings.trace
        if trace is None:
            trace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rpeg-rt-"))) / "trace.jsonl"
        meter = Meter(realisation)
        writer = TraceWriter(trace, meter.observe)
        stack.callback(writer.close)

        def on_step(report: StepReport) -> None:
            finished.append(meter.finished(report))
            for sink in sinks:
                sink.step(finished[-1])
            progress(finished[-1], steps)

        def on_evaluation(event: Evaluation) -> None:
            for sink in sinks:
                sink.evaluation(event)

        saver = None
        if settings.save is not None:
            saver = Saver(realisation, plan.id, seed, settings.save, settings.save_every, settings.keep)
        controller = Controller(
            plan,
            realisation,
            steps=steps,
            seed=seed,
            trace=writer,
            checkpoints=checkpoints.directories,
            snapshot=None if resumed is None else resumed.place,
            exports=exports,
            saver=saver,
            patience=Patience(settings.node_seconds),
            eval_every=eval_every,
            crew=crew,
            on_step=on_step,
            on_evaluation=on_evaluation,
            warn=warn,
        )
        controller.run(lambda finished: Host(problem, seed, directory, finished, warn))
        with complete():
            verdict = verify_trace(plan, read_trace(trace))
        if verdict.violations:
            raise VerificationError(verdict.violations)
    prediction = plan.executable.prediction
    return Outcome(
        plan=plan.id,
        steps=steps,
        first=begins.step,
        seed=seed,
        workers=realisation.world,
        nodes=verdict.nodes,
        seconds=controller.finished_ns / 1e9,
        step_seconds=median(m.seconds for m in finished) if finished else None,
        tokens_per_second=_tokens_per_second(finished),
        predicted_step_seconds=prediction.score.step_time_s,
        hardware=prediction.hardware,
        rewards=tuple(m.reward for m in finished if m.reward is not None),
        evaluations=tuple(controller.evaluations),
        bytes_moved=verdict.bytes_moved,
        trace=None if settings.trace is None else str(settings.trace),
        trace_verified=True,
    )


def _tokens_per_second(finished: list[StepMetrics]) -> float | None:
    """Median over the steps that tell it."""
    told = [m.tokens_per_second for m in finished if m.tokens_per_second is not None]
    return median(told) if told else None


def _resumed(plan: Plan, settings: Settings, steps: int, warn: Callable[[str], None]) -> Resumed | None:
    """What a run goes on from, if it is to; a run that saves where it resumes from may be the first there."""
    directory = settings.resume
    if directory is None or (directory == settings.save and not has_snapshots(directory)):
        return None
    return resume(directory, plan, steps, settings.seed, warn)


def _exports(plan: Plan, settings: Settings, end: Origin, resumed: Resumed | None) -> dict[str, Path]:
    """Where the trained models are to be written: all of them, but of a run that goes on where it saves those
    that it has written already."""
    if settings.save is None:
        return {}
    places = {model: settings.save / model for model in plan.executable.problem.graph.trainable}
    if settings.resume is None or settings.resume.resolve() != settings.save.resolve():
        return places
    plans = {plan.id} if resumed is None else {plan.id, resumed.manifest.plan}
    ends = [msgspec.structs.replace(end, plan=p) for p in plans]
    return {model: place for model, place in places.items() if not is_from(place, ends)}


def _data_directory(plan: Plan) -> Path:
    """Where relative paths of the run lead: the plan's directory if the prompts are there, else here."""
    run = plan.executable.problem.run
    if run is not None and run.prompts is not None and (plan.directory / run.prompts).is_file():
        return plan.directory
    return Path.cwd()
