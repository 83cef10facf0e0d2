"""Optimizers by name, and learning rates as plain functions of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from attendant.model.config import TrainConfig
from attendant.model.training.device import pick_precision
from attendant.model.training.muon import Muon
from attendant.model.transformer import Transformer


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that `config` names, fused where torch has that; the caller sets the learning rate of each step."""
    c, decay = config, config.weight_decay
    if c.optimizer == "muon":
        return _make_muon(model, c)
    parameters = list(model.parameters())
    if c.optimizer == "adam":
        return torch.optim.AdamW(
            parameters, lr=0.0, betas=(c.beta1, c.beta2), eps=c.epsilon, weight_decay=decay, fused=True
        )
    if c.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.0, weight_decay=decay, fused=True)
    if c.optimizer == "momentum":
        return torch.optim.SGD(parameters, lr=0.0, momentum=c.momentum, weight_decay=decay, fused=True)
    if c.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=0.0, eps=c.epsilon, weight_decay=decay)
    return torch.optim.RMSprop(parameters, lr=0.0, alpha=c.alpha, eps=c.epsilon, weight_decay=decay)


def _make_muon(model: nn.Module, config: TrainConfig) -> Muon:
    """Muon for the matrices of the layers, W_Q, W_K and W_V (and a gate) each on its own; Adam for the rest."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and name.startswith(("encoder.", "decoder.")) and not name.endswith("additive"):
            matrices.append((parameter, _stacked(name, model)))
        else:
            others.append(parameter)
    betas = (config.beta1, config.beta2)
    precision = pick_precision(config.precision, next(model.parameters()).device)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return Muon(matrices, others, config.momentum, betas, config.epsilon, config.weight_decay, dtype)


def _stacked(name: str, model: nn.Module) -> int:
    """How many matrices a weight of a layer is, one below the other."""
    if name.endswith("project_in.weight"):
        return 3
    gated = isinstance(model, Transformer) and model.config.gated
    return 2 if gated and name.endswith("widen.weight") else 1


def paper_rate(step: int, d_model: int, warmup: int) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), for steps from 1."""
    rate: float = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    return rate


def cosine_rate(step: int, steps: int, warmup: int) -> float:
    """Up to 1 in a straight line over the warm-up, down to 0 along half a cosine."""
    if step < warmup:
        return step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return (1 + math.cos(math.pi * done)) / 2


def trapezoid_rate(step: int, steps: int, warmup: int, decay: float) -> float:
    """Up to 1 over the warm-up, then constant, and down to 0 over the last fraction `decay` of the steps."""
    falling = max(1.0, decay * steps)
    return min(1.0, step / warmup, (steps - step) / falling if decay else 1.0)


def learning_rate(step: int, config: TrainConfig, d_model: int) -> float:
    """The rate of a step, counted from 1."""
    if config.schedule == "paper":
        return config.learning_rate * paper_rate(step, d_model, config.warmup)
    if config.schedule == "cosine":
        return config.learning_rate * cosine_rate(step, config.steps, config.warmup)
    return config.learning_rate * trapezoid_rate(step, config.steps, config.warmup, config.decay)
