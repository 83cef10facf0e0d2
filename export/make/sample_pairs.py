"""The pairs that an export is proven with: those given, the run's own, or invented ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel
from attendant.model.corpus.pairs import is_field, read_pairs
from attendant.model.search.decode import decode_all
from attendant.model.text.tokenizer import EOS, Tokenizer

INVENTED = 96  # pairs
LONGEST = 24  # tokens of an invented source
SEED = 1


def has_samples(run: Path) -> bool:
    return bool((run / checkpoint.SAMPLES).exists())


def sample_pairs(run: Path, trained: TrainedModel, given: Path | None = None) -> list[tuple[str, str]]:
    """Source and target texts. A run of an imported model may have none: then sources are random tokens."""
    if given is not None or has_samples(run):
        return list(read_pairs(given or run / checkpoint.SAMPLES))
    texts = random_texts(trained.source, min(LONGEST, trained.config.max_length - 1))
    sources = trained.source.encode_batch(texts)
    fitting = [i for i, ids in enumerate(sources) if 0 < len(ids) < trained.config.max_length]
    chosen = [sources[i] for i in fitting]
    room = trained.config.max_length - (1 if trained.start else 0)  # so that BOS and an unfinished answer fit
    limit = answer_limit(chosen, room)
    answers = decode_all(trained.model, chosen, max_length=limit, start=trained.start)
    return [(texts[i], trained.target.decode(ids)) for i, ids in zip(fitting, answers, strict=True)]


def random_texts(tokenizer: Tokenizer, longest: int) -> list[str]:
    """Texts of random ordinary tokens, the same every time."""
    rng = np.random.default_rng(SEED)
    ordinary = [i for i in range(EOS + 1, tokenizer.size) if " " not in tokenizer.token(i)]
    texts = [tokenizer.decode(rng.choice(ordinary, rng.integers(1, longest + 1)).tolist()) for _ in range(2 * INVENTED)]
    whole = [text for text in dict.fromkeys(texts) if is_field(text)]
    return whole[:INVENTED]


def answer_limit(sources: list[list[int]], max_length: int) -> int:
    """The most tokens that answers may have when compared: enough for any sensible answer to these sources."""
    return min(max_length, 2 * max(map(len, sources), default=0) + 50)
