"""What is streamed token by token is the text of the answer, and costs as much for the last token as for the first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from attendant.model.importers.files.sentencepiece import decoder as sentencepiece_decoder
from attendant.service.engine.tasks import Hypothesis, NewTokens
from attendant.service.requests.streamed import StreamedText
from attendant.service.text.tokenizer import UNFINISHED

SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>"]
WORDS = [
    "▁the",
    "▁",
    "cat",
    "▁▁",
    "s",
    ".",
    "'s",
    "▁é",
    "<language de>",
    "<special x>",
    "a</w>",
    "b</w>",
    "##c",
    "Ġdog",
]
BYTES = [f"<0x{byte:02X}>" for byte in (0xE6, 0xB0, 0xB4, 0x41, 0xFF, 0xC3, 0xA9)]
ALPHABET = ["æ", "°", "\u00b4", "A", "ÿ", "Ã", "©", "Ġ", "Ġthe", "Ċ"]  # the byte-level alphabet
DECODERS: dict[str, Any] = {
    "words": None,
    "characters": decoders.Fuse(),
    "byte level": decoders.ByteLevel(),
    "sentencepiece": sentencepiece_decoder(),
    "sentencepiece without a prefix": sentencepiece_decoder(dummy_prefix=False),
    "byte fallback": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "metaspace": decoders.Metaspace(),
    "bpe": decoders.BPEDecoder("</w>"),
    "word pieces": decoders.WordPiece(),
}


class Tokens:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, decoder: Any) -> None:
        self.texts = [*SPECIAL, *WORDS, *BYTES, *ALPHABET]
        self._backend = Backend(models.WordLevel({text: i for i, text in enumerate(self.texts)}, "<unk>"))
        if decoder is not None:
            self._backend.decoder = decoder
        self.decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return str(self._backend.decode([i for i in ids if i not in (0, 2, 3)], skip_special_tokens=False))

    def served(self) -> Any:
        return SimpleNamespace(engine=SimpleNamespace(target_tokenizer=self), tokens=self.texts)


def streamed(tokens: Tokens, ids: Sequence[int], rng: random.Random) -> list[tuple[str, str, int]]:
    """(token, text, index) of every event; some tokens come only with the answer."""
    stream, place = StreamedText(tokens.served()), 0
    events = []
    while place < len(ids) - rng.randint(0, 3):
        count = rng.randint(1, 3)
        new = ids[place : place + count]
        events += stream.add(NewTokens(0, tuple(new), (-1.0,) * len(new)))
        place += len(new)
    events += stream.finish(Hypothesis(tuple(ids), (-1.0,) * (len(ids) + 1), -1.0, "stop"))
    return [(event["token"], event["text"], event["index"]) for event in events]


def by_decoding_every_prefix(tokens: Tokens, ids: Sequence[int]) -> list[tuple[str, str, int]]:
    """The definition: each token has what it adds to the text of all before it, and waits inside a character."""
    events: list[tuple[str, str, int]] = []
    sent = ""
    for count in range(1, len(ids) + 1):
        text = tokens.decode(ids[:count])
        if count == len(ids) or not text.endswith(UNFINISHED):
            places = range(len(events), count)
            events += [(tokens.texts[ids[i]], text[len(sent) :] if i == count - 1 else "", i) for i in places]
            sent = text
    return events


@pytest.mark.parametrize("kind", DECODERS)
def test_every_event_is_what_decoding_every_prefix_gives(kind: str) -> None:
    tokens, rng = Tokens(DECODERS[kind]), random.Random(kind)
    for _ in range(400):
        some = rng.sample(range(len(tokens.texts)), rng.randint(1, len(tokens.texts)))
        ids = [rng.choice(some) for _ in range(rng.randint(0, 24))]
        assert streamed(tokens, ids, rng) == by_decoding_every_prefix(tokens, ids), [tokens.texts[i] for i in ids]


@pytest.mark.parametrize("kind", DECODERS)
def test_twice_as_many_tokens_cost_twice_as_much(kind: str) -> None:
    work = []
    for count in (500, 1000):
        tokens = Tokens(DECODERS[kind])
        streamed(tokens, [4 + i % 7 for i in range(count)], random.Random(0))
        work.append(tokens.decoded)
    assert work[1] < 2.5 * work[0]
