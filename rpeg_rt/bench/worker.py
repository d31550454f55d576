"""A worker that measures: it carries out jobs in the order in which they come, like all others."""

from functools import partial

import torch

from ir_schema.problem import Layout
from rpeg_rt.bench.jobs import Holding, Job, Occupancy, Operator, Result, Transfer
from rpeg_rt.bench.kernels import kernel
from rpeg_rt.bench.live import forget_peak, peak_tensor_bytes, process_bytes, total_bytes
from rpeg_rt.bench.subject import prepare
from rpeg_rt.bench.timing import Times, repeated
from rpeg_rt.bench.transfers import transfer
from rpeg_rt.engine.groups import make_layout
from rpeg_rt.protocol import Bench, Measure, Measured, Ready
from rpeg_rt.wire import Channel
from rpeg_rt.world import fastest_backend, join_world


class BenchWorker:
    """One rank that measures, as a member of whatever group a job needs."""

    def __init__(self, rank: int, start: Bench, listener: int | None) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_device(start.place % torch.cuda.device_count())
        join_world(start.store, rank, start.world, listener, fastest_backend())

    def serve(self, channel: Channel) -> int:
        """Carry out jobs until the controller says stop or goes away; the process's exit code."""
        channel.send(Ready())
        while isinstance(frame := channel.receive(), Measure):
            channel.send(Measured(self.measure(frame.job)))
        return 0

    def measure(self, job: Job) -> Result:
        """Carry out a job. Collective over all workers."""
        subject = job.subject
        meeting = make_layout(job.ranks, _side_by_side(len(job.ranks)))
        layout = None
        if isinstance(subject, Operator | Holding):
            layout = make_layout(job.ranks, subject.case.placement.layout)
        if not meeting.member:
            return Result()
        group, times, held = meeting.collection.dp, Times((), ()), 0
        if isinstance(subject, Operator | Holding):
            assert layout is not None
            forget_peak()
            prepared = partial(prepare, subject.case, layout)
            if isinstance(subject, Operator):
                times = repeated(prepared(), group, job.effort)
            else:
                held = peak_tensor_bytes(prepared)
        elif isinstance(subject, Transfer):
            times = repeated(transfer(subject, job.ranks, group), group, job.effort)
        elif not isinstance(subject, Occupancy):
            times = repeated(kernel(subject), group, job.effort)
        return Result(*times, tensor_bytes=held, process_bytes=process_bytes(), total_bytes=total_bytes())


def _side_by_side(count: int) -> Layout:
    return Layout(data_parallel=count, pipeline_parallel=1, tensor_parallel=1)
