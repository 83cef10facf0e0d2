"""Text to ids and back: characters, whitespace-separated symbols, or byte-pair encoding.

Every kind is a `tokenizers` JSON file, so serving reads it with that library alone, whatever kind it is.
The special tokens have a space in their name. No kind can produce one from text: a character is one character, a
symbol has no space inside, and byte-level pieces write a space in another way. So a text that spells one is just text.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from attendant.model.errors import ConfigError, UserError
from attendant.model.files import write_text
from attendant.model.text import normalize

SPECIAL_TOKENS = ("<padding token>", "<unknown token>", "<start of text>", "<end of text>")
PAD, UNK, BOS, EOS = range(4)
KINDS = "chars, words or bpe:SIZE"
SMALLEST_BPE, LARGEST_BPE = 256 + len(SPECIAL_TOKENS), 2**20


class Tokenizer:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def size(self) -> int:
        return self._backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start or end token; UNK for what the vocabulary lacks."""
        return self._backend.encode(text).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._backend.encode_batch_fast(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; start, end and padding are skipped."""
        return self._backend.decode([i for i in ids if i not in (PAD, BOS, EOS)], skip_special_tokens=False)

    @property
    def is_running_text(self) -> bool:
        """Whether tokens are subwords of ordinary text, for which BLEU and chrF are meaningful."""
        return isinstance(self._backend.model, models.BPE | models.Unigram)

    def pieces(self, text: str) -> list[str]:
        """The text cut into tokens, as strings, even if the vocabulary lacks them: the units that error rates count."""
        if not self.is_running_text:
            return [symbol for symbol, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]
        return self._backend.encode(text).tokens

    def unknown_pieces(self, text: str) -> list[str]:
        """The pieces of a text that the vocabulary lacks, in order."""
        encoding = self._backend.encode(text)
        starts = {start for start, _ in encoding.offsets}
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [text[start : _with_marks(text, stop, starts)] for index, (start, stop) in pairs if index == UNK]

    def normalizing(self, names: Sequence[str]) -> Tokenizer:
        """A copy of this tokenizer that normalizes texts first; `names` are those of model/text/normalize.py."""
        backend = Backend.from_str(self._backend.to_str())
        backend.normalizer = normalize.build(names)
        return Tokenizer(backend)

    @property
    def byte_level(self) -> bool:
        """Whether tokens are bytes of UTF-8, as GPT-2's and BART's are."""
        return isinstance(self._backend.pre_tokenizer, pre_tokenizers.ByteLevel)

    def token(self, index: int) -> str:
        token = self._backend.id_to_token(index)
        if token is None:
            raise IndexError(f"the vocabulary has no token {index}; its size is {self.size}")
        return token

    def save(self, path: Path) -> None:
        write_text(path, self._backend.to_str(pretty=True) + "\n")

    def to_str(self) -> str:
        return self._backend.to_str()


def _with_marks(text: str, stop: int, starts: set[int]) -> int:
    """A token's end offset, moved past combining marks that a normalizer merged into its last character."""
    while 0 < stop < len(text) and stop not in starts and unicodedata.combining(text[stop]):
        stop += 1
    return stop


def load(path: Path) -> Tokenizer:
    """Read a JSON file of the `tokenizers` library."""
    try:
        return Tokenizer(Backend.from_file(str(path)))
    except Exception as error:  # the library raises no other type
        raise UserError(f"{path} cannot be read as a tokenizer: {error}.") from None


def check_kind(kind: str, flag: str) -> None:
    """Refuse an unknown kind of tokenizer, before any work is done."""
    name, _, size = kind.partition(":")
    if kind in ("chars", "words"):
        return
    if name != "bpe" or not size.isdecimal():
        raise ConfigError(f"{flag} takes {KINDS}, not {kind!r}.")
    if not SMALLEST_BPE <= int(size) <= LARGEST_BPE:
        raise ConfigError(
            f"{flag} bpe:SIZE needs a SIZE from {SMALLEST_BPE} (256 bytes and the special tokens) to {LARGEST_BPE}, "
            f"not {size}."
        )


def learn(kind: str, texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with the vocabulary of the texts; memory grows with the vocabulary, not with the texts."""
    check_kind(kind, "a tokenizer")
    if kind == "chars":
        return _learn_listed(texts, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse())
    if kind == "words":
        return _learn_listed(texts, pre_tokenizers.WhitespaceSplit(), None)
    return _learn_bpe(int(kind.partition(":")[2]), texts)


def _learn_listed(texts: Iterable[str], split: pre_tokenizers.PreTokenizer, join: decoders.Decoder | None) -> Tokenizer:
    """Every symbol of the texts is a token, the most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(symbol for symbol, _ in split.pre_tokenize_str(text))
    symbols = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *symbols])}
    backend = Backend(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
    backend.pre_tokenizer = split
    if join is not None:
        backend.decoder = join
    return Tokenizer(backend)


def _learn_bpe(size: int, texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE: all 256 bytes are in the vocabulary, so no text has unknown tokens."""
    trainee = Backend(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    trainee.train_from_iterator(texts, trainer)
    # The trainer registers the special tokens for matching in text; a fresh tokenizer of the same pieces does not.
    learnt = json.loads(trainee.to_str())["model"]
    backend = Backend(models.BPE(learnt["vocab"], [tuple(pair) for pair in learnt["merges"]]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)
