"""Models of other frameworks, small and random, and their answers as the oracle of what was imported."""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor
from torch.testing import assert_close

from attendant.model.importers.imported import ImportedModel
from attendant.model.search.decode import decode_all
from attendant.model.text.tokenizer import BOS, EOS, PAD, UNK

WORDS = ["the", "of", "and", "to", "in", "you", "that", "was", "for", "are", "with", "they", "this", "have", "from"]
OTHER = ["der", "die", "und", "von", "das", "mit", "sich", "auf", "für", "nicht", "eine", "als", "auch", "werden"]
CROSS_OUTPUTS = ("encoder_attn.out", "multihead_attn.out", "EncDecAttention.o")
SOURCES = 200
LENGTH = 28  # positions of the small models


def sentences(count: int, words: list[str] = WORDS, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]


def train_spm(path: Path, words: list[str], kind: str = "unigram", **options: object) -> Path:
    """A SentencePiece model of some words, at `path`."""
    defaults = {"vocab_size": 60, "model_type": kind, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(300, words)), model_prefix=str(path.with_suffix("")), **(defaults | options)
    )
    path.with_suffix(".vocab").unlink()
    path.with_suffix(".model").rename(path)
    return path


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0, std: float = 0.3, cross: float = 3.0) -> None:
    """Weights with which sources matter and no two tokens are about equally probable; norms and biases are random."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape)
            if parameter.dim() == 1:
                parameter.copy_(0.1 * noise + float("norm" in name and name.endswith("weight")))
            else:
                parameter.copy_(noise * std * (cross if any(part in name for part in CROSS_OUTPUTS) else 1))


# (B, S) source ids, (B, S) mask, (B, T) decoder ids -> (B, T, V) logits, all in the other framework's ids
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


@torch.inference_mode()
def oracle_greedy(
    forward: Forward, sources: list[list[int]], start: list[int], end: int, pad: int, blocked: list[int], length: int
) -> tuple[list[list[int]], Tensor]:
    """The most probable token each time, and all log-probabilities, (B, T, V)."""
    width = max(map(len, sources))
    source = torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids in sources])
    mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in sources])
    target = torch.tensor([start] * len(sources))
    for _ in range(length):
        logits = forward(source, mask, target)
        # Padding and what only starts a target take no probability here; other frameworks forbid them in the search.
        logits[:, :, blocked] = float("-inf")
        target = torch.cat([target, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    found = target[:, len(start) :].tolist()
    return [ids[: ids.index(end)] if end in ids else ids for ids in found], logits.log_softmax(-1)


def check_against(
    imported: ImportedModel,
    texts: list[str],
    to_foreign: dict[int, int],
    forward: Forward,
    encode: Callable[[str], list[int]],
    start: list[int],
    end: int,
    pad: int,
    blocked: list[int],
    source_to_foreign: dict[int, int] | None = None,
) -> None:
    """Source ids, greedy tokens, and log-probabilities of all tokens are the oracle's."""
    model = imported.load()
    ours = [encoding.ids for encoding in imported.source.encode_batch(texts)]
    theirs = [encode(text) for text in texts]
    of_source = source_to_foreign or to_foreign
    assert [[of_source[i] for i in (*ids, EOS)] for ids in ours] == theirs
    prefix = imported.generation.get("target_prefix", [])
    assert [to_foreign[i] for i in prefix] == start[1:]
    length = model.config.max_length - len(prefix)
    wanted, logprobs = oracle_greedy(forward, theirs, start, end, pad, blocked, length)
    found = greedy_after(model, ours, prefix)
    assert [[to_foreign[i] for i in ids] for ids in found] == wanted
    assert len({tuple(ids) for ids in wanted}) > len(texts) // 10  # or the comparison would say little
    compare_logprobs(model, ours, found, prefix, to_foreign, logprobs, len(start) - 1, set(blocked))


@torch.inference_mode()
def greedy_after(model: torch.nn.Module, sources: list[list[int]], prefix: list[int]) -> list[list[int]]:
    """Greedy tokens after a forced prefix."""
    if not prefix:
        return decode_all(model, sources)
    found = []
    for source in sources:
        given = torch.tensor([[*source, EOS]])
        mask = model.source_mask(given)
        cache = model.start(model.encode(given, mask), mask)
        tokens, ids = torch.tensor([[BOS, *prefix]]), []
        while len(ids) < model.config.max_length - len(prefix):
            logits = model.decode(tokens, cache)[0, -1]
            logits[[PAD, BOS]] = float("-inf")
            token = int(logits.argmax())
            if token == EOS:
                break
            ids.append(token)
            tokens = torch.tensor([[token]])
        found.append(ids)
    return found


@torch.inference_mode()
def compare_logprobs(
    model: torch.nn.Module,
    sources: list[list[int]],
    targets: list[list[int]],
    prefix: list[int],
    to_foreign: dict[int, int],
    logprobs: Tensor,
    skipped: int,
    blocked: set[int],
) -> None:
    possible = [i for i, index in to_foreign.items() if i not in (PAD, BOS) and index not in blocked]
    possible = [i for i in possible if i == UNK or to_foreign[i] != to_foreign[UNK]]
    columns = [to_foreign[i] for i in possible]
    for row, (source, ids) in enumerate(zip(sources, targets, strict=True)):
        inputs = [BOS, *prefix, *ids][: model.config.max_length]
        mine = model(torch.tensor([[*source, EOS]]), torch.tensor([inputs]))[0, skipped:].log_softmax(-1)
        theirs = logprobs[row, skipped:][: len(mine)][:, columns]
        assert_close(mine[:, possible], theirs, atol=1e-4, rtol=0)


def names_to_foreign(imported: ImportedModel, side: str, ids: dict[str, int], special: list[int]) -> dict[int, int]:
    """Our ids to the other framework's by name: `special` are those of padding, unknown, start and end."""
    backend = imported.source if side == "source" else imported.target
    found = dict(enumerate(special))
    for index in range(4, backend.get_vocab_size()):
        name = backend.id_to_token(index)
        for mark in ("<language ", "<special "):
            if name.startswith(mark):
                name = name.removeprefix(mark).removesuffix(">")
        name = name.removeprefix("  ")
        found[index] = ids.get(name, special[UNK])
    return found


class Harmful:
    """What makes a directory when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm was done",)


class TorchTransformer(torch.nn.Module):
    """The model of torch's translation tutorial: `nn.Transformer`, embeddings, positions, an output with a bias."""

    def __init__(self, source_vocab: int, target_vocab: int, positions: Tensor, **options: Any) -> None:
        super().__init__()
        d_model, final_norm = options["d_model"], options.pop("final_norm", True)
        bias = options.pop("output_bias", True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on its fast path
            self.transformer = torch.nn.Transformer(dropout=0.0, batch_first=True, **options)
        self.transformer.encoder.use_nested_tensor = False
        self.src_tok_emb = torch.nn.Embedding(source_vocab, d_model)
        self.tgt_tok_emb = torch.nn.Embedding(target_vocab, d_model)
        self.generator = torch.nn.Linear(d_model, target_vocab, bias=bias)
        self.register_buffer("positions", positions)
        if not final_norm:
            self.transformer.encoder.norm = self.transformer.decoder.norm = None

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        scale = math.sqrt(self.src_tok_emb.embedding_dim)
        x = self.src_tok_emb(source) * scale + self.positions[: source.shape[1]]
        y = self.tgt_tok_emb(target) * scale + self.positions[: target.shape[1]]
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        out = self.transformer(x, y, tgt_mask=causal, src_key_padding_mask=mask == 0, memory_key_padding_mask=mask == 0)
        return self.generator(out)
