"""Muon (Jordan et al., 2024): momentum, made orthogonal before it is applied to a matrix.

A gradient of a weight matrix is dominated by a few directions. Replacing it by the nearest orthogonal matrix gives
every direction the same say, and a pass over the data teaches more. Vectors, embeddings and the output have no such
structure and get Adam, at the same learning rate: a Muon update is scaled to the size that Adam's has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)  # the coefficients of Jordan et al.: they bring singular values near 1 quickly
ITERATIONS = 5
UPDATE_SIZE = 0.4  # root mean square of an update, as a multiple of the learning rate: about that of Adam


def orthogonalise(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Roughly U V^T of each matrix U S V^T, by a Newton-Schulz iteration computed in `dtype`.

    (N, rows, columns) -> the same shape
    """
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    orthogonal: Tensor = x.mT if tall else x
    return orthogonal.to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """`matrices`: parameters for Muon, each with the number of matrices stacked in it; `others`: parameters for Adam.

    `weight_decay` is decoupled, as in AdamW, and applies to matrices only: of `others`, to embeddings, not to vectors.
    """

    def __init__(
        self,
        matrices: Iterable[tuple[nn.Parameter, int]],
        others: Iterable[nn.Parameter],
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        matrices = list(matrices)
        self._dtype = dtype
        self._parts = [parts for _, parts in matrices]
        shared: dict[str, Any] = {"lr": 0.0, "weight_decay": weight_decay}
        groups = [
            {"params": [p for p, _ in matrices], "momentum": momentum, **shared},
            {"params": list(others), "betas": betas, "eps": eps, **shared},
        ]
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self._muon(self.param_groups[0])
        self._adam(self.param_groups[1])

    def _muon(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for parameter, parts in zip(group["params"], self._parts, strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(state["momentum"], group["momentum"])  # Nesterov
            for part, piece in zip(parameter.chunk(parts), update.chunk(parts), strict=True):
                by_shape.setdefault(part.shape, []).append((part, piece))
        for shape, members in by_shape.items():
            updates = orthogonalise(torch.stack([piece for _, piece in members]), self._dtype)
            size = UPDATE_SIZE * max(shape) ** 0.5
            for (part, _), update in zip(members, updates, strict=True):
                part.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * size)

    def _adam(self, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
            step = float(state["step"])
            state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
            state["exp_avg_sq"].lerp_(parameter.grad.square(), 1 - beta2)
            mean = state["exp_avg"] / (1 - beta1**step)
            deviation = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_() + group["eps"]
            if parameter.dim() > 1:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.addcdiv_(mean, deviation, value=-group["lr"])
