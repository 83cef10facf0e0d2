"""Whether a validation file has sources of the training file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attendant.model.corpus.pairs import read_pairs


def overlap_warning(train: Path, valid: Path, normalized: Callable[[str], str] = str) -> str | None:
    """A sentence where sources of `valid` are in `train` too; a hash of each source of `valid` is kept in memory."""
    held_out = {hash(normalized(source)) for source, _ in read_pairs(valid)}
    shared = held_out & {key for source, _ in read_pairs(train) if (key := hash(normalized(source))) in held_out}
    if not shared:
        return None
    return (
        f"warning: {len(shared):,} of the {len(held_out):,} validation sources are in {train} too: validation will "
        "look better than the model is. Take them out of one file, or leave out --valid to have a part split off."
    )
