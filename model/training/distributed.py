"""Data-parallel training: `torchrun` starts the same command several times, and each process takes some of the rows.

A batch is the same whatever the number of processes: process r of n computes every n-th row of it from row r, and the
gradients are added up, so n processes compute what one would with the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attendant.model.corpus.data import Batch

# The others wait for the first process while it prepares the corpus and validates, and torch's own limit of 10 to 30
# minutes would end that. torchrun itself ends a run of which a process has died.
LONGEST_WAIT = timedelta(days=1)


@dataclass(frozen=True)
class World:
    """The processes that train together; without torchrun, one process with rank 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @staticmethod
    def join(device: str = "auto") -> World:
        """Join the process group of torchrun; without torchrun, a world of one process. `device`: as in TrainConfig."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return World()
        on_cuda = device != "cpu" and torch.cuda.is_available()
        dist.init_process_group("nccl" if on_cuda else "gloo", timeout=LONGEST_WAIT)
        return World(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")))

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        if self.size > 1:
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def once(self, work: Callable[[], None]) -> None:
        """Run `work` in the first process, while the others wait until it is done."""
        if self.is_first:
            work()
        self.barrier()

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def rows_of(self, batch: Batch) -> Batch | None:
        """This process's rows of a batch; None where there are fewer rows than processes."""
        mine = batch.rows(slice(self.rank, None, self.size))
        return mine if len(mine.source) else None

    def sum(self, value: Tensor) -> None:
        if self.size > 1:
            dist.all_reduce(value)

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up every process's gradients, in one all-reduce."""
        if self.size == 1:
            return
        parameters = list(model.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = summed.view_as(parameter).clone()
