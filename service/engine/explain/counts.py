"""How many values an explanation answers beside attention weights: known before anything is computed."""

from __future__ import annotations

from attendant.export.bundle import Sizes
from attendant.service.engine.explain.attention import layers_of
from attendant.service.engine.tasks import AttentionChoice

MOST_POSITIONS = 128  # rows of a table of positions that are answered
MOST_DISTANCES = 128  # of relative positions whose bias is answered, on each side
MOST_NEIGHBOURS = 8
MOST_POINTS = 2000  # tokens in the plane


def count_included(
    include: tuple[str, ...], choice: AttentionChoice, sizes: Sizes, source: int, steps: int, read: int
) -> int:
    """The most values that are answered; `steps` of the target, for which `read` tokens are read."""
    total = 0
    for kind in choice.kinds:
        layers = layers_of(kind, sizes) if choice.layers is None else len(choice.layers)
        heads = sizes.heads if choice.heads is None else len(choice.heads)
        rows, columns = {"encoder": (source, source), "decoder": (steps, read), "cross": (steps, source)}[kind]
        each = {
            "qkv": (rows + 2 * columns + 1) * sizes.head,  # 1: an additive score's v
            "scores": rows * columns,
            "sums": rows * sizes.head,
            "projected": rows * sizes.d_model,
        }
        total += layers * heads * sum(each.get(name, 0) for name in include)
    encoder, decoder = 2 * sizes.encoder_layers, 3 * sizes.decoder_layers
    most = {
        "residual": sizes.d_model * ((2 * encoder + 1) * source + (2 * decoder + 1) * read),
        "embeddings": 2 * sizes.d_model * (source + read),
        "bias": sizes.heads * (3 * MOST_DISTANCES + 2),
        "positions": 2 * sizes.d_model * MOST_POSITIONS,
        "neighbours": 2 * MOST_NEIGHBOURS * (source + read),
        "plane": 2 * MOST_POINTS,
    }
    return total + sum(most.get(name, 0) for name in include)
