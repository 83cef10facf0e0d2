"""tokenizer.json of Hugging Face's fast tokenizers: the text model of a directory without a SentencePiece file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from attendant.model.importers.files.sentencepiece import OUTSIDE, SPACE, decoder
from attendant.model.importers.problems import Problems, first_line, read_json
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK


@dataclass
class TokenizerJson:
    """Its model (BPE or Unigram of SentencePiece's pieces), normalizer, pre-tokenizer; no template or added tokens."""

    kind: str
    scores: dict[str, float]  # pieces; of BPE, all 0
    merges: list[tuple[str, str]]
    before: dict[str, Any]  # normalizer and pre_tokenizer, as in the file
    added: list[AddedToken] = field(default_factory=list)  # found in a text before it is cut; each has a score too

    @property
    def pieces_of_text(self) -> list[str]:
        return list(self.scores)

    def name(self, token: str) -> str:
        return token

    def backend(self, names: Sequence[str]) -> Backend:
        """A tokenizer with these tokens in this order; no text yields those that are not pieces."""
        special = len(SPECIAL_TOKENS)
        named = [n if i < special or n in self.scores or " " in n else OUTSIDE + n for i, n in enumerate(names)]
        known = set(named)
        model: dict[str, Any] = {"type": "Unigram", "unk_id": UNK, "byte_fallback": False}
        if self.kind == "Unigram":
            model["vocab"] = [[name, self.scores.get(name, 0.0)] for name in named]
        else:
            merges = [[a, b] for a, b in self.merges if {a, b, a + b} <= known]
            model = {"type": "BPE", "unk_token": SPECIAL_TOKENS[UNK], "fuse_unk": True, "merges": merges}
            model["vocab"] = {name: i for i, name in enumerate(named)}
        content = {"version": "1.0", "added_tokens": [], "post_processor": None, "model": model, **self.before}
        backend = Backend.from_str(json.dumps(content))
        backend.decoder = decoder()
        backend.add_tokens([token for token in self.added if token.content in known])  # they keep their ids
        return backend


def read(path: Path, problems: Problems) -> TokenizerJson | None:
    """The content of a file; None, with problems added, if it is not a model of SentencePiece's pieces."""
    before = len(problems.found)
    content = read_json(path, problems)
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    kind, entries = model.get("type"), model.get("vocab")
    if not content:
        return None
    scores = _scores(entries)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in _listed(model.get("merges"))]
    if kind not in ("BPE", "Unigram") or not any(SPACE in piece for piece in scores):
        problems.add(
            f"{path.name} holds a model of type {kind!r:.40}; BPE and Unigram of SentencePiece can be imported"
        )
    if model.get("byte_fallback"):
        problems.add(f"{path.name} spells unknown characters in bytes (byte_fallback), which is not supported")
    if not all(isinstance(m, list) and len(m) == 2 and all(isinstance(p, str) for p in m) for m in merges):
        problems.add(f"{path.name}: a merge is not two pieces")
    if kind == "BPE" and not merges:
        problems.add(f"{path.name} has no merges")
    if len(problems.found) > before:
        return None
    added = {str(entry.get("content")) for entry in _listed(content.get("added_tokens")) if isinstance(entry, dict)}
    found = TokenizerJson(
        str(kind),
        {piece: score for piece, score in scores.items() if piece not in added},
        [(a, b) for a, b in merges],
        {name: content.get(name) for name in ("normalizer", "pre_tokenizer")},
    )
    try:
        found.backend([*SPECIAL_TOKENS, *found.scores]).encode("a b")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers panics on an invalid normalization table
        problems.add(f"{path.name} cannot be read by tokenizers: {first_line(error)}")
        return None
    return found


def _scores(entries: Any) -> dict[str, float]:
    """{piece: score} of a table of piece: id (scores are 0) or a list of [piece, score]; drops other entries."""
    if isinstance(entries, dict):
        return dict.fromkeys(map(str, entries), 0.0)
    pairs = [entry for entry in _listed(entries) if isinstance(entry, list) and len(entry) == 2]
    return {piece: float(score) for piece, score in pairs if isinstance(piece, str) and isinstance(score, int | float)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
