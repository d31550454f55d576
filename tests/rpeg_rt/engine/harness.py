"""Forked worker processes for engine tests: torch and Megatron are imported once, in the test process.

`launch(world, function)` runs `function(rank)` in `world` forked processes joined by Gloo on the loopback
interface and returns their results. Nothing hangs: a failed or late process ends all of them.
"""

import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

import rpeg_rt.engine.engine  # noqa: F401  (imported before the processes are forked)
from ir_schema.model import ModelSpec
from ir_schema.problem import Layout, Workload
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.groups import LayoutGroups, make_layout
from rpeg_rt.initial import initial_tensor

WORKLOAD = Workload(prompts=4, rollouts=3, prompt_length=6, response_length=8)


def launch(world: int, function: Callable[[int], Any], seconds: float = 90.0) -> list[Any]:
    """Results of `function(rank)` by rank; raises RuntimeError with the first failure's traceback."""
    assert not dist.is_initialized(), "threads of this process's group would be missing in forked processes"
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        workers = [
            context.Process(target=_work, args=(rank, world, directory, pipes[rank][1], function, seconds))
            for rank in range(world)
        ]
        for worker, (_, theirs) in zip(workers, pipes, strict=True):
            worker.start()
            theirs.close()
        try:
            return _collect([mine for mine, _ in pipes], seconds)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()


def _collect(pipes: list[Any], seconds: float) -> list[Any]:
    deadline = time.monotonic() + seconds
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        open_pipes = [p for rank, p in enumerate(pipes) if rank not in results]
        for pipe in wait(open_pipes, timeout=max(0.0, deadline - time.monotonic())):
            rank = pipes.index(pipe)
            try:
                succeeded, results[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                raise RuntimeError(f"rank {rank} died") from None
            if not succeeded:
                raise RuntimeError(f"rank {rank}: {results[rank]}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {sorted(set(range(len(pipes))) - set(results))} did not finish")
    return [results[rank] for rank in range(len(pipes))]


def _work(rank, world, directory, pipe, function, seconds):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{directory}/store",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=seconds),
        )
        result = (True, function(rank))
        dist.barrier()
    except BaseException:
        result = (False, traceback.format_exc())
    # Not pipe.send: it would hand out file descriptors of this process, which ends here.
    pipe.send_bytes(pickle.dumps(result))
    pipe.close()
    os._exit(0)


def layout(data: int = 1, pipeline: int = 1, tensor: int = 1, context: int = 1, expert: int = 1) -> Layout:
    return Layout(
        data_parallel=data,
        pipeline_parallel=pipeline,
        tensor_parallel=tensor,
        context_parallel=context,
        expert_parallel=expert,
    )


def groups_of(ranks: list[int], shape: Layout) -> LayoutGroups:
    return make_layout(ranks, shape)


def canonical(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Random weights, float64: also norms, biases and scalar heads differ from what they would start as."""
    values = torch.from_numpy(initial_tensor(7, "test", "matrix" + name.replace("bias", "b"), (*shape, 1)))
    values = values[..., 0]
    return 1 + 0.2 * values if "norm" in name else 0.3 * values


def engine(spec: ModelSpec, groups: LayoutGroups, precision=torch.float64, **options: Any) -> Engine:
    made = Engine(spec, groups, precision=precision, workload=WORKLOAD, **options)
    made.load(canonical)
    return made


def prompts() -> torch.Tensor:
    """Four prompts of different lengths, two of them of the full L_p."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.full((WORKLOAD.prompts, WORKLOAD.prompt_length), -1, dtype=torch.int32)
    for row, length in zip(rows, (6, 2, 6, 1), strict=True):
        row[WORKLOAD.prompt_length - length :] = torch.randint(0, 60, (length,), generator=generator)
    return rows


def spec(**changes: Any) -> ModelSpec:
    base = {
        "layers": 2,
        "hidden": 32,
        "ffn": 48,
        "vocabulary": 61,
        "head": "lm",
        "attention_heads": 4,
        "kv_heads": 2,
    }
    return ModelSpec(**(base | changes))
