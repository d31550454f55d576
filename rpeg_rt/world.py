"""How a worker joins the others: one process group over all workers of a run."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

STORE_SECONDS = 300.0


def join_world(address: tuple[str, int], rank: int, world: int, listener: int | None, backend: str) -> None:
    """Meet the other workers of `world` at the store in which they tell each other their addresses; worker 0
    keeps it, at socket `listener`. `backend` is what then carries tensors between them."""
    store = TCPStore(
        *address,
        is_master=rank == 0,
        timeout=timedelta(seconds=STORE_SECONDS),
        wait_for_workers=False,
        master_listen_fd=listener if rank == 0 else None,
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


def fastest_backend() -> str:
    """Gloo, and NCCL for what lives on GPUs where there are some."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
