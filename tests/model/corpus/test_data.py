from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attendant.model.corpus import data
from attendant.model.corpus.data import EncodedCorpus, collate, epoch_batches, ordered_batches
from attendant.model.corpus.pairs import read_pairs, read_references
from attendant.model.errors import DataError
from attendant.model.text.tokenizer import BOS, EOS, PAD, learn


def encode(tsv: Path, tmp_path: Path, max_length: int = 100) -> tuple[EncodedCorpus, int]:
    tokenizer = learn("chars", (text for pair in read_pairs(tsv) for text in pair))
    return EncodedCorpus.write(tsv, tmp_path / "corpus", tokenizer, tokenizer, max_length)


def pairs_of(batches: list[data.Batch]) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    return Counter(
        (tuple(s[s != PAD].tolist()), tuple(t[t != PAD].tolist()))
        for batch in batches
        for s, t in zip(batch.source, batch.target, strict=True)
    )


@pytest.fixture
def corpus(write_tsv: Callable[..., Path], tmp_path: Path) -> EncodedCorpus:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdef"), rng.integers(1, 15))) for _ in range(3000)]
    return encode(write_tsv(*[f"{w}\t{w[::-1]}{w[:3]}" for w in words]), tmp_path)[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a\tb\nno tab here\n", r"corpus\.tsv, line 2, has no tab"),
        (b"a\tb\na\tb\tc\n", r"corpus\.tsv, line 2, has 2 tabs"),
        (b"a\tb\n\tb\n", r"corpus\.tsv, line 2, has an empty source"),
        (b"a\tb\na\t  \n", r"corpus\.tsv, line 2, has an empty target"),
        (b"a\tb\nc\t\xff\xfe\n", r"corpus\.tsv, line 2, is not UTF-8"),
        (b"a\tb\n\n", r"corpus\.tsv, line 2, has no tab"),
        (b"", r"corpus\.tsv is empty"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused_with_its_line(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        list(read_pairs(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        list(read_pairs(tmp_path / "nowhere.tsv"))


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_bytes(b"\xef\xbb\xbfa\tb\r\nc\td")
    assert list(read_pairs(tmp_path / "c.tsv")) == [("a", "b"), ("c", "d")]


def test_several_targets_of_a_source_are_all_its_references(write_tsv: Callable[..., Path]) -> None:
    assert read_references(write_tsv("a\tx", "b\ty", "a\tz")) == {"a": ["x", "z"], "b": ["y"]}


def test_an_epoch_is_every_pair_once(corpus: EncodedCorpus) -> None:
    epochs = [pairs_of(list(epoch_batches(corpus, 500, 1, epoch))) for epoch in (0, 1)]
    assert epochs[0] == epochs[1] == pairs_of(list(ordered_batches(corpus, 500)))
    assert epochs[0].total() == 3000


def test_an_epoch_that_needs_several_pools_is_every_pair_once(
    corpus: EncodedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "BLOCK_PAIRS", 64)
    monkeypatch.setattr(data, "POOL_PAIRS", 256)
    assert pairs_of(list(epoch_batches(corpus, 500, 1, 0))) == pairs_of(list(ordered_batches(corpus, 500)))


def test_the_order_depends_on_seed_and_epoch_alone(corpus: EncodedCorpus) -> None:
    def order(seed: int, epoch: int) -> list[list[list[int]]]:
        return [batch.source.tolist() for batch in epoch_batches(corpus, 500, seed, epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_a_batch_keeps_to_its_token_budget_and_pads_little(corpus: EncodedCorpus) -> None:
    padding = tokens = 0
    for batch in epoch_batches(corpus, 500, 1, 0):
        size = batch.source.numel() + batch.target[:, 1:].numel()
        assert size <= 500
        tokens += size
        padding += int((batch.source == PAD).sum() + (batch.target == PAD).sum())
    assert padding / tokens < 0.05


def test_a_pair_longer_than_the_budget_is_a_batch_of_its_own(write_tsv: Callable[..., Path], tmp_path: Path) -> None:
    corpus, _ = encode(write_tsv("a" * 50 + "\tb", "a\tb"), tmp_path)
    assert sorted(batch.source.shape[1] for batch in epoch_batches(corpus, 10, 1, 0)) == [2, 51]


def test_pairs_over_the_length_limit_are_left_out_and_counted(write_tsv: Callable[..., Path], tmp_path: Path) -> None:
    corpus, dropped = encode(write_tsv("abc\tx", "abcd\tx", "x\tabcd", "y\tabc"), tmp_path, max_length=4)
    assert (corpus.pairs, dropped) == (2, 2)
    with pytest.raises(DataError, match="no pair of fewer than 3 tokens"):
        encode(write_tsv("abc\tx"), tmp_path, max_length=3)


def test_a_batch_begins_and_ends_where_it_should() -> None:
    batch = collate([[5, 6], [7]], [[8], [9, 10]])
    assert batch.source.tolist() == [[5, 6, EOS], [7, EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 8, EOS, PAD], [BOS, 9, 10, EOS]]
    assert batch.target_tokens == 5


def test_with_one_target_a_pass_has_each_source_once_and_its_first_target_in_half_of_the_passes(
    write_tsv: Callable[..., Path], tmp_path: Path
) -> None:
    """Sources have one, two or three targets; `ab` stands twice, apart from itself, and counts as two."""
    sources = [f"{a}{b}" for a in "cdefghij" for b in "klmnopqrst"]
    lines = [f"{s}\t{t}" for i, s in enumerate(sources) for t in ("x", "xy", "xyz")[: i % 3 + 1]]
    encoded, _ = encode(write_tsv("ab\tx", *lines, "ab\txyz"), tmp_path)
    times = Counter[int]()
    for epoch in range(50):
        found = pairs_of(list(epoch_batches(encoded, 200, 1, epoch, one_target=True)))
        assert sum(found.values()) == len({source for source, _ in found}) + 1 == len(sources) + 2
        times.update(len(target) for source, target in found.elements())
    first, second, third = (times[n] for n in (3, 4, 5))  # with start and end token
    one, two, three = 27 + 1, 27, 26  # sources with so many targets; one `ab` has the longest
    assert first / 50 == pytest.approx(one + two / 2 + three / 2, abs=2.5)
    assert second / 50 == pytest.approx(two / 2 + three / 4, abs=2.5)
    assert third / 50 == pytest.approx(three / 4 + 1, abs=2.5)
