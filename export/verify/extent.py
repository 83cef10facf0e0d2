"""How long the compared inputs may be: what one comparison holds is bounded by the model's own weights.

Up to WALK tokens are decoded one by one from the start. Beyond, a few windows of WINDOW tokens are, up to the model's
limit, each after keys and values that torch computed. No torch is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from attendant.export.signature import Sizes

WALK, WINDOW, WINDOWS = 64, 6, 4
LEAST_ROOM = 96 * 2**20  # bytes of values, however small the model
FLOAT = 4  # bytes
MAP_COPIES, SCORE_COPIES, LOGPROB_COPIES = 3, 3, 6  # of what a pass computes, those that are held at once


@dataclass(frozen=True)
class Extent:
    """Tokens of source and target up to which something is compared."""

    maps: int  # the attention of every layer and head
    whole: int  # log-probabilities of a whole pass
    source: int  # sources that the plain encoder reads
    windows: tuple[int, ...]  # first positions of the windows

    def left_out(self, limit: int) -> list[str]:
        """What is not compared up to the limit, in words."""
        told = []
        if self.whole < limit:
            told.append(f"whole passes beyond {self.whole} of {limit} tokens, attention beyond {self.maps}")
        elif self.maps < limit:
            told.append(f"attention beyond {self.maps} of {limit} tokens")
        if self.source < limit:
            told.append(f"the plain encoder beyond {self.source} tokens")
        return told


def weight_bytes(sizes: Sizes) -> int:
    """Of the model in f32, without biases and norms; its tables once."""
    d, ff = sizes.d_model, sizes.d_ff
    layers = sizes.encoder_layers * (4 * d * d + 2 * d * ff) + sizes.decoder_layers * (8 * d * d + 2 * d * ff)
    return FLOAT * (max(sizes.source_vocab, sizes.target_vocab) * d + layers)


def room_of(sizes: Sizes) -> int:
    """Bytes of values that a comparison may hold."""
    return max(LEAST_ROOM, weight_bytes(sizes) // 2)


def extent_of(sizes: Sizes) -> Extent:
    room, limit = room_of(sizes), sizes.max_length
    layers = sizes.encoder_layers + 2 * sizes.decoder_layers
    logprobs = LOGPROB_COPIES * sizes.target_vocab
    maps = _longest(MAP_COPIES * layers * sizes.heads, logprobs, room, limit)
    whole = _longest(SCORE_COPIES * sizes.heads, logprobs, room, limit)
    source = _longest(SCORE_COPIES * sizes.heads, SCORE_COPIES * sizes.d_ff, room, limit)
    last = limit - WINDOW
    windows = sorted({WALK + (last - WALK) * (i + 1) // WINDOWS for i in range(WINDOWS)}) if last >= WALK else []
    return Extent(maps, whole, source, tuple(windows))


def _longest(squared: int, linear: int, room: int, limit: int) -> int:
    """The largest n up to the limit whose squared * n^2 + linear * n values fit."""
    values = room / FLOAT
    found = (-linear + (linear**2 + 4 * squared * values) ** 0.5) / (2 * squared)
    return max(1, min(limit, int(found)))
