"""A worker that measures: it carries out jobs in the order in which they come, like all others."""

import torch
import torch.distributed as dist

from ir_schema.problem import Layout
from rpeg_rt.bench.jobs import Job, Occupancy, Operator, Result, Transfer
from rpeg_rt.bench.kernels import kernel
from rpeg_rt.bench.live import forget_peak, peak_tensor_bytes, process_bytes, total_bytes
from rpeg_rt.bench.subject import prepare
from rpeg_rt.bench.timing import Times, repeated
from rpeg_rt.bench.transfers import transfer
from rpeg_rt.engine.groups import LayoutGroups, make_layout
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
        meeting = make_layout(job.ranks, _side_by_side(len(job.ranks)))
        layout = None
        if isinstance(job.subject, Operator):
            layout = make_layout(job.ranks, job.subject.case.placement.layout)
        if not meeting.member:
            return Result()
        if layout is not None:
            return self._operator(job, layout, meeting.collection.dp)
        times = self._times(job, meeting.collection.dp)
        return Result(*times, process_bytes=process_bytes(), total_bytes=total_bytes())

    def _times(self, job: Job, group: dist.ProcessGroup) -> Times:
        subject = job.subject
        if isinstance(subject, Occupancy):
            return Times((), ())
        assert not isinstance(subject, Operator)
        call = transfer(subject, job.ranks, group) if isinstance(subject, Transfer) else kernel(subject)
        return repeated(call, group, job.effort)

    def _operator(self, job: Job, layout: LayoutGroups, group: dist.ProcessGroup) -> Result:
        """An operator's times and, apart from them because watching slows down, the tensors that it holds."""
        assert isinstance(job.subject, Operator)
        case = job.subject.case
        forget_peak()
        times = repeated(prepare(case, layout), group, job.effort)
        occupied = process_bytes()
        forget_peak()
        held = peak_tensor_bytes(lambda: prepare(case, layout))
        return Result(*times, tensor_bytes=held, process_bytes=occupied, total_bytes=total_bytes())


def _side_by_side(count: int) -> Layout:
    return Layout(data_parallel=count, pipeline_parallel=1, tensor_parallel=1)
