"""The figures of a run, step by step, and where they go: a file of JSON lines, TensorBoard.

What workers tell of a step's responses and losses comes with its `StepReport`; versions, times and kinds of
nodes are read off the events of the trace as they are written, so the two can never disagree.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from ir_schema.base import Record
from ir_schema.trace import Complete, Dispatch, Evaluation, Event, Snapshot
from rpeg_rt.failure import FileError
from rpeg_rt.files import LineFile
from rpeg_rt.progress import StepReport
from rpeg_rt.realise import Realisation

HOST = "host"


class StepMetrics(Record, frozen=True, kw_only=True):
    """One RL step.

    `time_s` is when its last Op was complete, since the start of the run; `seconds` the time since the
    previous step's, without evaluations and snapshots in between. `tokens` are those of its prompts and
    responses (None where no training tells their lengths), `tokens_per_second` them by `seconds`.
    `staleness`: by trained model, by how many versions the oldest weights that served the step were behind
    those that it trained.
    `busy_s` are the seconds of all workers in nodes completed since the previous step, by what they do:
    a role, Comm or Reshard, and `host`, whose seconds are the host's. `vertices` are the figures of the
    training vertices.
    """

    step: int
    time_s: float
    seconds: float
    tokens: float | None
    tokens_per_second: float | None
    staleness: dict[str, int]
    busy_s: dict[str, float]
    vertices: dict[str, dict[str, float]]

    @property
    def reward(self) -> float | None:
        """Mean reward of the responses, as the first training vertex that saw them tells it."""
        return next((m["reward"] for m in self.vertices.values() if "reward" in m), None)


class Meter:
    """Makes the metrics of each finished step from the events of the trace and the step's report."""

    def __init__(self, realisation: Realisation) -> None:
        self._sequences = realisation.problem.workload.sequences
        self._models = {v.name: v.model for v in realisation.vertices.values() if v.role == "training"}
        self._kinds = {
            i: HOST
            if b.on_host
            else b.node.kind
            if b.node.kind != "Op"
            else realisation.vertices[b.vertices[0]].role
            for i, b in realisation.bound.items()
        }
        self._ops = {i: b.vertices for i, b in realisation.bound.items() if b.node.kind == "Op"}
        self._trained: dict[int, dict[str, int]] = defaultdict(dict)
        self._served: dict[int, dict[str, int]] = defaultdict(dict)
        self._busy_ns: dict[str, int] = defaultdict(int)
        self._paused_ns = 0
        self._end_ns: int | None = None

    def observe(self, event: Event) -> None:
        """Take note of an event of the trace, before the step that it completes is `finished`."""
        if isinstance(event, Dispatch) and self._end_ns is None:
            self._end_ns = event.time_ns
        elif isinstance(event, Evaluation | Snapshot) and self._end_ns is not None:
            self._paused_ns += event.time_ns - event.start_ns
        elif isinstance(event, Complete):
            parts = [*event.parts.values(), *([] if event.host is None else [event.host])]
            self._busy_ns[self._kinds[event.node]] += sum(p.finish_ns - p.start_ns for p in parts)
            if event.node in self._ops:
                self._take_versions(event)

    def _take_versions(self, event: Complete) -> None:
        trained = {self._models[v] for v in self._ops[event.node] if v in self._models}
        for part in event.parts.values():
            for model, version in part.reads.items():
                if model in trained:
                    self._trained[event.step][model] = version
                else:
                    oldest = self._served[event.step]
                    oldest[model] = min(version, oldest.get(model, version))

    def finished(self, report: StepReport) -> StepMetrics:
        """The metrics of a step all of whose Ops are complete. Steps come in order."""
        assert self._end_ns is not None, "a step begins with a dispatch"
        end = max(self._end_ns, report.finished_ns)
        seconds = max(end - self._end_ns - self._paused_ns, 1) / 1e9
        busy = {kind: ns / 1e9 for kind, ns in sorted(self._busy_ns.items())}
        self._end_ns, self._paused_ns, self._busy_ns = end, 0, defaultdict(int)
        trained, served = (x.pop(report.step, {}) for x in (self._trained, self._served))
        tokens = self._tokens(report)
        return StepMetrics(
            step=report.step,
            time_s=report.finished_ns / 1e9,
            seconds=seconds,
            tokens=tokens,
            tokens_per_second=None if tokens is None else tokens / seconds,
            staleness={m: version - served.get(m, version) for m, version in trained.items()},
            busy_s=busy,
            vertices=report.metrics,
        )

    def _tokens(self, report: StepReport) -> float | None:
        for told in report.metrics.values():
            if "response_tokens" in told:
                return self._sequences * (told["prompt_tokens"] + told["response_tokens"])
        return None


class Sink(Protocol):
    """Where metrics go."""

    def step(self, metrics: StepMetrics) -> None:
        """One more step is finished. Raises FileError."""

    def evaluation(self, event: Evaluation) -> None:
        """Held-out prompts were answered. Raises FileError."""

    def close(self) -> None:
        """Nothing more comes."""


def _told(event: Evaluation) -> dict[str, int | float]:
    return {"step": event.step, "prompts": event.prompts, "reward": event.reward, "correct": event.correct}


def _is_earlier(first: int, line: bytes) -> bool:
    """Whether a line was written before step `first`."""
    try:
        told = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError:
        return False
    return told.step < first if told.evaluation is None else told.evaluation.step <= first


class _Evaluated(msgspec.Struct):
    step: int


class _Line(msgspec.Struct):
    """As much of a line as tells of when it is."""

    step: int = 0
    evaluation: _Evaluated | None = None


class JsonLines:
    """A file with one JSON line per step (`StepMetrics`) and per evaluation. Raises FileError.

    It is new, but for a run that is resumed at step `first`: the lines of earlier steps stay.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self._file = LineFile(path, "metrics", partial(_is_earlier, first) if first else None)

    def step(self, metrics: StepMetrics) -> None:
        """Append a step. Raises FileError."""
        self._file.write(msgspec.json.encode(metrics) + b"\n")

    def evaluation(self, event: Evaluation) -> None:
        """Append a line with `time_s` and, as `evaluation`, what it found. Raises FileError."""
        line = {"time_s": event.time_ns / 1e9, "evaluation": _told(event)}
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """An event file of TensorBoard in a directory; the x-axis is the step. A run that is resumed at step
    `first` takes the place of what is there from then on.

    Raises FileError without the package `tensorboard` or where the directory cannot be written.
    """

    def __init__(self, directory: Path, first: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as exc:
            raise FileError(
                "--tensorboard needs the package `tensorboard`: install rpeg[tensorboard], or let "
                "--metrics write JSON lines"
            ) from exc
        try:
            self._writer = SummaryWriter(str(directory), purge_step=first or None)
        except OSError as exc:
            raise FileError(f"cannot write to the directory {directory}: {exc.strerror or exc}") from exc

    def step(self, metrics: StepMetrics) -> None:
        """Add a step's scalars: `VERTEX/FIGURE`, `run/seconds`, `staleness/MODEL`, `busy_s/KIND`."""
        run = {"seconds": metrics.seconds}
        if metrics.tokens_per_second is not None:
            run["tokens_per_second"] = metrics.tokens_per_second
        groups: dict[str, Mapping[str, float]] = {"run": run, "staleness": metrics.staleness}
        groups |= {"busy_s": metrics.busy_s, **metrics.vertices}
        for group, figures in groups.items():
            self._add(group, figures, metrics.step)

    def evaluation(self, event: Evaluation) -> None:
        """Add `held_out/reward` and `held_out/correct`."""
        self._add("held_out", {"reward": event.reward, "correct": event.correct}, event.step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _add(self, group: str, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
