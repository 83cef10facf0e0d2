"""Byte-level BPE and its vocabulary in a directory of Hugging Face's, as BART and Blenderbot have them."""

from __future__ import annotations

from typing import Any

from tokenizers import pre_tokenizers

from attendant.model.importers.families import hf_vocabulary
from attendant.model.importers.families.huggingface import Directory
from attendant.model.importers.families.vocabulary import Vocabulary, tokens_by_id
from attendant.model.importers.files.byte_level import ByteLevel
from attendant.model.importers.files.text_models import read_lines
from attendant.model.importers.problems import Settings, read_json

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def read_bytes(d: Directory, prefix_space: bool) -> ByteLevel | None:
    """vocab.json and merges.txt, else tokenizer.json; `prefix_space`: a space before a text, where no file says."""
    if (d.path / "vocab.json").exists():
        vocabulary = read_json(d.path / "vocab.json", d.problems)
        lines = read_lines(d.path / "merges.txt", d.problems) or []
        rows: list[Any] = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    else:
        model = read_json(d.path / "tokenizer.json", d.problems).get("model")
        model = model if isinstance(model, dict) else {}
        listed = model.get("vocab")
        vocabulary = listed if isinstance(listed, dict) else {}
        rows = [m.split(" ") if isinstance(m, str) else m for m in model.get("merges") or []]
    if not all(isinstance(row, list) and len(row) == 2 and all(isinstance(p, str) for p in row) for row in rows):
        d.problems.add("a line of merges.txt is not two pieces")
        return None
    if not rows and vocabulary:
        d.problems.add("there are no merges of byte pairs: merges.txt is missing or empty")
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    if vocabulary and not alphabet <= vocabulary.keys():
        kind = d.settings.values.get("model_type")
        d.problems.add(
            f"the vocabulary lacks some of the 256 bytes; only GPT-2's byte-level BPE can be imported for {kind}"
        )
    added = hf_vocabulary.added_tokens(d)
    for index, token in added.items():
        if vocabulary.setdefault(token.content, index) != index:
            d.problems.add(
                f"the added token {token.content!r:.40} has the id {index}, and in the vocabulary "
                f"{vocabulary[token.content]!r:.40}"
            )
    options = read_json(d.path / hf_vocabulary.TOKENIZER_CONFIG, d.problems, optional=True)
    before = Settings(options, hf_vocabulary.TOKENIZER_CONFIG, d.problems).flag("add_prefix_space", prefix_space)
    return ByteLevel(vocabulary, [(a, b) for a, b in rows], list(added.values()), before)


def byte_vocabulary(d: Directory, text: ByteLevel, pad: int, start: int, end: int) -> Vocabulary:
    """The tokens by id; `pad`, `start`, `end`: their ids where config.json does not say."""
    size = d.vocab_size
    entries = {t: i for t, i in text.vocabulary.items() if (t, i) != ("<mask>", size)}  # bart-large-cnn has no such row
    tokens = tokens_by_id(entries, size, "vocab.json", d.problems)
    for token in SPECIAL[:-1]:
        if token not in tokens:
            d.problems.add(f"vocab.json lacks {token}")
    d.problems.raise_if_any()
    control = frozenset(i for i, t in enumerate(tokens) if t in SPECIAL or t.startswith("<unused "))
    return Vocabulary(
        tokens=tokens,
        pad=d.settings.index("pad_token_id", size, pad),
        unk=tokens.index("<unk>"),
        control=control,
        start=d.settings.index("decoder_start_token_id", size, start),
        end=d.settings.index("eos_token_id", size, end),
    )
