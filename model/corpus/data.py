"""From a TSV of `source<TAB>target` lines to batches, in memory that does not grow with the corpus.

The corpus is encoded once, to two flat files: every token of every pair, and an index of where each pair begins.
An epoch visits blocks of consecutive pairs in random order; a pool of blocks at a time is read, shuffled, sorted by
length and cut into batches of a token budget, which are then shuffled. A corpus that fits one pool is shuffled whole.
The batches of an epoch are a function of the seed and the epoch alone, so training can resume anywhere in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attendant.common.progress import Count
from attendant.model.corpus.pairs import read_pairs
from attendant.model.distillation.teachers import TeacherDistributions
from attendant.model.errors import DataError
from attendant.model.text.tokenizer import BOS, EOS, PAD, Tokenizer

BLOCK_PAIRS = 1024
POOL_PAIRS = 262_144
ENCODED_AT_ONCE = 4096  # lines handed to the tokenizer together
INDEX_TYPE = np.dtype([("start", "<i8"), ("source", "<i4"), ("target", "<i4")])  # of a pair: offset, lengths, in tokens
TOKEN_TYPE = np.dtype("<i4")


@dataclass
class Batch:
    """One batch, padded on the right. The decoder reads target[:, :-1] and predicts target[:, 1:]."""

    source: Tensor  # (B, S) ending in EOS
    target: Tensor  # (B, T) from BOS to EOS
    teacher_tokens: Tensor | None = None  # (B, T - 1, K) the teachers' most probable tokens at each position
    teacher_probabilities: Tensor | None = None  # (B, T - 1, K) of these; 0 at padding

    @property
    def target_tokens(self) -> int:
        return int((self.target[:, 1:] != PAD).sum())

    def to(self, device: torch.device) -> Batch:
        return self._each(lambda tensor: tensor.to(device))

    def rows(self, chosen: slice) -> Batch:
        return self._each(lambda tensor: tensor[chosen])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        taught = (self.teacher_tokens, self.teacher_probabilities)
        changed = (None if value is None else change(value) for value in taught)
        return Batch(change(self.source), change(self.target), *changed)


@dataclass(frozen=True)
class EncodedCorpus:
    """Token ids on disk, read a block at a time."""

    tokens: Path
    index: Path
    pairs: int

    @staticmethod
    def open(prefix: Path) -> EncodedCorpus:
        tokens, index = prefix.with_suffix(".tokens"), prefix.with_suffix(".index")
        return EncodedCorpus(tokens, index, index.stat().st_size // INDEX_TYPE.itemsize)

    @staticmethod
    def write(
        tsv: Path, prefix: Path, source: Tokenizer, target: Tokenizer, max_length: int
    ) -> tuple[EncodedCorpus, int]:
        """Encode a TSV to PREFIX.tokens and PREFIX.index. Pairs over max_length are left out, and counted."""
        start = dropped = 0
        progress = Count(f"encoding {tsv.name}", "pairs")
        with prefix.with_suffix(".tokens").open("wb") as tokens, prefix.with_suffix(".index").open("wb") as index:
            for chunk in _chunks(read_pairs(tsv), ENCODED_AT_ONCE):
                sources = source.encode_batch([pair[0] for pair in chunk])
                targets = target.encode_batch([pair[1] for pair in chunk])
                # The end token takes a place too, so max_length itself is too long.
                fitting = [(s, t) for s, t in zip(sources, targets, strict=True) if max(len(s), len(t)) < max_length]
                dropped += len(chunk) - len(fitting)
                rows = np.zeros(len(fitting), INDEX_TYPE)
                rows["source"], rows["target"] = [len(s) for s, _ in fitting], [len(t) for _, t in fitting]
                ends = np.cumsum(rows["source"] + rows["target"], dtype=np.int64)
                rows["start"] = start + ends - rows["source"] - rows["target"]
                tokens.write(np.array([i for s, t in fitting for i in (*s, *t)], TOKEN_TYPE).tobytes())
                index.write(rows.tobytes())
                start += int(ends[-1]) if fitting else 0
                progress.add(len(chunk))
        progress.close()
        corpus = EncodedCorpus.open(prefix)
        if corpus.pairs == 0:
            raise DataError(f"{tsv} has no pair of fewer than {max_length} tokens a side; raise --set max_length=.")
        return corpus, dropped

    def read(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and index of up to `count` pairs from pair `first` on; offsets in the index start at 0."""
        index = np.fromfile(self.index, INDEX_TYPE, count, offset=first * INDEX_TYPE.itemsize)
        size = int(index["start"][-1] + index["source"][-1] + index["target"][-1] - index["start"][0])
        tokens = np.fromfile(self.tokens, TOKEN_TYPE, size, offset=int(index["start"][0]) * TOKEN_TYPE.itemsize)
        index["start"] -= index["start"][0]
        return tokens, index


def epoch_batches(
    corpus: EncodedCorpus,
    batch_tokens: int,
    seed: int,
    epoch: int,
    one_target: bool = False,
    teachers: TeacherDistributions | None = None,
) -> Iterator[Batch]:
    """Every pair once, in batches of similar lengths, in an order that depends on seed and epoch alone.

    With `one_target`, only one pair of each source; with `teachers`, each batch carries their distributions.
    """
    rng = np.random.default_rng([seed, epoch])
    blocks = rng.permutation(range(0, corpus.pairs, BLOCK_PAIRS))
    blocks_in_pool = POOL_PAIRS // BLOCK_PAIRS
    for first in range(0, len(blocks), blocks_in_pool):
        tokens, index, numbers = _read_blocks(corpus, blocks[first : first + blocks_in_pool])
        if one_target:
            kept = _one_of_each_source(tokens, index, rng)
            index, numbers = index[kept], numbers[kept]
        shuffled = rng.permutation(len(index))
        by_length = shuffled[np.lexsort((index["target"][shuffled], index["source"][shuffled]))]
        cuts = list(_cut(index[by_length], batch_tokens))
        for i in rng.permutation(len(cuts)):
            chosen = by_length[slice(*cuts[i])]
            batch = _collate(tokens, index[chosen])
            if teachers is not None:
                batch.teacher_tokens, batch.teacher_probabilities = teachers.read(numbers[chosen])
            yield batch


def _one_of_each_source(tokens: np.ndarray, index: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One pair of each run of pairs with the same source: the first with probability 1/2, else any of the others."""
    ends = index["start"] + index["source"]
    sources = [tokens[a:b].tobytes() for a, b in zip(index["start"], ends, strict=True)]
    first = np.array([i for i, source in enumerate(sources) if i == 0 or source != sources[i - 1]])
    size = np.diff(np.append(first, len(sources)))
    other = rng.integers(1, np.maximum(size, 2))
    return first + np.where((size > 1) & (rng.random(len(size)) < 0.5), other, 0)


def ordered_batches(corpus: EncodedCorpus, batch_tokens: int) -> Iterator[Batch]:
    """Every pair once, in the order of the file but for sorting by length inside a pool: for validation."""
    return (batch for _, batch in numbered_batches(corpus, batch_tokens))


def numbered_batches(corpus: EncodedCorpus, batch_tokens: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """The batches of `ordered_batches`, each with the numbers of its pairs in the corpus."""
    for first in range(0, corpus.pairs, POOL_PAIRS):
        tokens, index = corpus.read(first, POOL_PAIRS)
        by_length = np.lexsort((index["target"], index["source"]))
        for cut in _cut(index[by_length], batch_tokens):
            chosen = by_length[slice(*cut)]
            yield first + chosen, _collate(tokens, index[chosen])


def collate(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """A batch of id lists, with start tokens, end tokens and padding added."""
    return Batch(
        _pad([np.array([*ids, EOS]) for ids in sources]),
        _pad([np.array([BOS, *ids, EOS]) for ids in targets]),
    )


def _chunks(pairs: Iterator[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    chunk: list[tuple[str, str]] = []
    for pair in pairs:
        chunk.append(pair)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _read_blocks(corpus: EncodedCorpus, firsts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of some blocks, their index, and the numbers of their pairs in the corpus."""
    parts = [corpus.read(int(first), BLOCK_PAIRS) for first in firsts]
    start = 0
    for tokens, index in parts:
        index["start"] += start
        start += len(tokens)
    numbers = [np.arange(first, first + len(index)) for first, (_, index) in zip(firsts, parts, strict=True)]
    tokens, index = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return tokens, index, np.concatenate(numbers)


def _cut(index: np.ndarray, batch_tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of an index sorted by length, each as many pairs as fit the budget when padded (at least one)."""
    first = longest_source = longest_target = 0
    lengths = np.stack([index["source"] + 1, index["target"] + 1], axis=1).tolist()  # with the end token
    for i, (source, target) in enumerate(lengths):
        wider_source, wider_target = max(longest_source, source), max(longest_target, target)
        if i > first and (i - first + 1) * (wider_source + wider_target) > batch_tokens:
            yield first, i
            first, wider_source, wider_target = i, source, target
        longest_source, longest_target = wider_source, wider_target
    yield first, len(lengths)


def _collate(tokens: np.ndarray, index: np.ndarray) -> Batch:
    middles = index["start"] + index["source"]
    sources = [tokens[a:b].tolist() for a, b in zip(index["start"], middles, strict=True)]
    targets = [tokens[a:b].tolist() for a, b in zip(middles, middles + index["target"], strict=True)]
    return collate(sources, targets)


def _pad(rows: list[np.ndarray]) -> Tensor:
    padded = np.full((len(rows), max(map(len, rows))), PAD, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)
