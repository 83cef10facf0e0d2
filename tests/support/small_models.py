"""Small random models of any shape."""

from __future__ import annotations

from typing import Any

import torch

from attendant.model.config import ModelConfig
from attendant.model.transformer import Transformer

SMALL: dict[str, Any] = {
    "source_vocab": 13, "target_vocab": 11, "d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2,
    "decoder_layers": 2, "dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0, "max_length": 64,
}  # fmt: skip


def make_model(seed: int = 0, **changes: Any) -> Transformer:
    """A small random model in eval mode."""
    torch.manual_seed(seed)
    return Transformer(ModelConfig(**{**SMALL, **changes})).eval()


# What T5 has: distances and lengths are small enough for the tests to reach the last bucket.
T5: dict[str, Any] = {
    "positions": "relative", "relative_buckets": 8, "relative_distance": 6, "norm": "pre", "norm_kind": "rms",
    "activation": "gated_gelu", "bias": False, "scale_embeddings": False, "head_size": 16,
}  # fmt: skip
# What a model that was trained elsewhere may have; the defaults have none of it.
FOREIGN: list[dict[str, Any]] = [
    {"output_bias": True}, {"embedding_norm": True}, {"final_norm": True}, {"scale_embeddings": False},
    {"source_end": False},
    {"output_bias": True, "embedding_norm": True, "final_norm": True, "scale_embeddings": False, "tie": "none",
     "positions": "learned"},
    T5, T5 | {"activation": "gated_silu", "norm": "post", "final_norm": True, "tie": "embeddings", "shared_vocab": True,
              "source_vocab": 11},
]  # fmt: skip


def make_foreign_model(**changes: Any) -> Transformer:
    """A small model whose norms and biases are not those of a fresh one."""
    return with_random_biases(make_model(**changes))


def with_random_biases(model: Transformer) -> Transformer:
    """The model with biases and norms that are not 0 and 1, so that a forgotten one shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model
