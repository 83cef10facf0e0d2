"""A torch model as the `Stepper` that `model.decode` searches with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attendant.model.corpus.data import collate
from attendant.model.transformer import Transformer

Array = np.ndarray[Any, Any]


class TorchStepper:
    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.max_length, self.target_vocab = model.config.max_length, model.config.target_vocab
        self._device = model.output.weight.device

    @torch.inference_mode()
    def start(self, sources: list[list[int]]) -> None:
        ids = collate(sources, [[] for _ in sources]).source.to(self._device)  # (B, S)
        mask = self.model.source_mask(ids)
        self._cache = self.model.start(self.model.encode(ids, mask), mask)

    @torch.inference_mode()
    def step(self, tokens: Array, k: int) -> tuple[Array, Array]:
        target = torch.from_numpy(tokens).to(self._device).unsqueeze(1)  # (R, 1)
        top = self.model.decode(target, self._cache)[:, -1].float().log_softmax(-1).topk(k)
        return top.values.cpu().numpy(), top.indices.cpu().numpy()

    @torch.inference_mode()
    def reorder(self, rows: Array) -> None:
        self._cache.reorder(torch.from_numpy(rows).to(self._device))
