"""Tokens by id, and languages, of Hugging Face directories with one SentencePiece model for both sides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from attendant.model.importers.families.huggingface import Directory
from attendant.model.importers.families.vocabulary import Vocabulary, ids_of
from attendant.model.importers.files import sentencepiece, tokenizer_json
from attendant.model.importers.files.sentencepiece import CONTROL, UNKNOWN, SentencePiece
from attendant.model.importers.files.tokenizer_json import TokenizerJson
from attendant.model.importers.problems import Problems, read_json

SPM, TOKENIZER = "sentencepiece.bpe.model", "tokenizer.json"
TOKENIZER_CONFIG, ADDED = "tokenizer_config.json", "added_tokens.json"
MATCHED = ("single_word", "lstrip", "rstrip")  # flags: how an added token is found in a text
FAIRSEQ_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
LANGUAGE = re.compile(r"__([a-z]+)__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")  # __fr__, fr_XX, fra_Latn
Text = SentencePiece | TokenizerJson


def shared_vocabulary(d: Directory, text: Text) -> Vocabulary:
    """The vocabulary of both sides. No text yields language codes or fairseq's special tokens."""
    size = d.vocab_size
    tokens = read_tokens(d, text, size)
    for token in set(FAIRSEQ_SPECIAL) - set(tokens):
        d.problems.add(f"the vocabulary lacks {token}")
    ids = {token: i for i, token in reversed(list(enumerate(tokens)))}
    special = {*FAIRSEQ_SPECIAL, "<mask>"}
    return Vocabulary(
        tokens=tokens,
        pad=d.settings.index("pad_token_id", size, 1),
        unk=ids.get("<unk>", 0),
        start=d.settings.index("decoder_start_token_id", size, 2),
        end=d.settings.index("eos_token_id", size, 2),
        control=frozenset(i for i, t in enumerate(tokens) if t in special or t.startswith("<unused ")),
        languages=languages_of(tokens),
    )


def read_tokens(d: Directory, text: Text, size: int) -> list[str]:
    """Tokens by id, `size` of them: of tokenizer.json, else of vocab.json, else the pieces in fairseq's order."""
    if (d.path / TOKENIZER).exists():
        found = tokens_of_tokenizer_json(d.path, d.problems)
    elif (d.path / "vocab.json").exists():
        found = ids_of(read_json(d.path / "vocab.json", d.problems), "vocab.json", d.problems)
    else:
        assert isinstance(text, SentencePiece)  # since there is no tokenizer.json
        pieces = [piece for piece, _, kind in text.pieces if kind not in (CONTROL, UNKNOWN)]
        found = dict(enumerate([*FAIRSEQ_SPECIAL, *pieces]))
    if not any(LANGUAGE.fullmatch(token) for token in found.values()):
        found |= dict(enumerate(_listed(d), start=max(found, default=-1) + 1))
    for index, token in added_tokens(d).items():
        found.setdefault(index, token.content)
    refuse_beyond(d, found)
    size = min(size, 2**22)
    return [found.get(i, f"<unused {i}>") for i in range(size)]


def refuse_beyond(d: Directory, found: dict[int, str]) -> None:
    """A problem if a token has no row in the embedding."""
    size = d.vocab_size
    for index in [index for index in found if not 0 <= index < size][:1]:
        d.problems.add(f"the token {found[index]!r:.40} has the id {index!r:.40}, and the model has {size:,} tokens")


def added_tokens(d: Directory) -> dict[int, AddedToken]:
    """Tokens that were added to a tokenizer beside its vocabulary, by id, wherever its files name them.

    Special tokens are usually among them; all are treated as text here.
    """
    listed = read_json(d.path / TOKENIZER, d.problems, optional=True).get("added_tokens")
    by_id = read_json(d.path / TOKENIZER_CONFIG, d.problems, optional=True).get("added_tokens_decoder")
    entries: list[tuple[str, Any, Any]] = []
    if isinstance(listed, list):
        entries += [(TOKENIZER, entry.get("id"), entry) for entry in listed if isinstance(entry, dict)]
    if isinstance(by_id, dict):
        numbers = [(int(key) if key.isdecimal() else key, entry) for key, entry in by_id.items()]
        entries += [(TOKENIZER_CONFIG, index, entry) for index, entry in numbers if isinstance(entry, dict)]
    only = read_json(d.path / ADDED, d.problems, optional=True)
    entries += [(ADDED, index, {"content": token}) for token, index in only.items()]
    found: dict[int, AddedToken] = {}
    for name, index, entry in entries:
        content = entry.get("content")
        if not isinstance(content, str) or not content or type(index) is not int or index < 0:
            d.problems.add(f"{name}: the added token {content!r:.40} has the id {index!r:.40}, which is none")
            continue
        token = AddedToken(content, **{flag: entry.get(flag) is True for flag in MATCHED}, normalized=False)
        if found.setdefault(index, token).content != content:
            d.problems.add(f"{name}: {content!r:.40} and {found[index].content!r:.40} have the same id, {index}")
    return found


def read_text(path: Path, problems: Problems, name: str = SPM) -> Text | None:
    """The text model of a directory: its SentencePiece file of that name, or if it has none, its tokenizer.json."""
    if not (path / name).exists() and (path / TOKENIZER).exists():
        return tokenizer_json.read(path / TOKENIZER, problems)
    return sentencepiece.read(path / name, problems)


def spm_files(path: Path, name: str = SPM) -> dict[str, Path]:
    return dict.fromkeys(("source", "target"), path / name) if (path / name).exists() else {}


def languages_of(tokens: list[str]) -> dict[str, int]:
    found = ((LANGUAGE.fullmatch(token), i) for i, token in enumerate(tokens))
    return {match[1] or match[2]: i for match, i in found if match}


def tokenizer_class(d: Directory) -> str:
    """The class of tokenizer_config.json, else of config.json, where older models have it; empty where neither says."""
    found = read_json(d.path / TOKENIZER_CONFIG, d.problems, optional=True).get("tokenizer_class")
    return str(found or d.settings.values.get("tokenizer_class") or "")


def pick_language(d: Directory, flag: str, code: str | None, languages: dict[str, int]) -> int | None:
    if code is not None and code not in languages:
        d.problems.add(f"{flag} takes one of {', '.join(sorted(languages)) or 'no value'}, not {code!r}")
        return None
    return None if code is None else languages[code]


def default_languages(source_language: str | None, target_language: str | None) -> dict[str, str]:
    both = {"source_language": source_language, "target_language": target_language}
    return {name: code for name, code in both.items() if code is not None}


def tokens_of_tokenizer_json(path: Path, problems: Problems) -> dict[int, str]:
    """{id: token} of a directory's tokenizer.json, added tokens included."""
    content = read_json(path / TOKENIZER, problems)
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        found = {i: str(entry[0]) for i, entry in enumerate(vocabulary) if isinstance(entry, list) and entry}
    else:
        found = ids_of(vocabulary if isinstance(vocabulary, dict) else {}, "tokenizer.json", problems)
    added = content.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), int):
            found[entry["id"]] = str(entry.get("content"))
    return found


def _listed(d: Directory) -> list[str]:
    """The additional special tokens in their order, which are usually the languages."""
    for name in ("special_tokens_map.json", TOKENIZER_CONFIG):
        content = read_json(d.path / name, d.problems, optional=True)
        for field in ("additional_special_tokens", "extra_special_tokens"):
            entries = content.get(field)
            if isinstance(entries, list) and entries:
                return [str(entry.get("content") if isinstance(entry, dict) else entry) for entry in entries]
    d.problems.add("no file lists the languages: special_tokens_map.json with additional_special_tokens does")
    return []
