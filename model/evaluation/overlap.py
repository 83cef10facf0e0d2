"""BLEU and chrF of running text by sacrebleu, with the tokenization that the script of the references needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

# Ranges of code points: scripts that are written without spaces, and Hangul, whose words carry their particles.
SCRIPTS = {
    "kana": ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF)),
    "han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
    "unspaced": ((0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai to Khmer
}
ENOUGH = 0.3  # fraction of the letters that must be of these scripts, or the tokenization is 13a
WITH_KANA = 0.05  # fraction of kana, among kana and Han, above which a text is Japanese


def tokenizations(texts: Iterable[str]) -> list[str]:
    """Names of sacrebleu's tokenizations for these texts, best first; the last needs no further package."""
    counts = dict.fromkeys(SCRIPTS, 0)
    letters = 0
    for character in "".join(texts):
        letters += character.isalpha()
        code = ord(character)
        for script, ranges in SCRIPTS.items():
            counts[script] += any(low <= code <= high for low, high in ranges)
    if sum(counts.values()) < max(1, ENOUGH * letters):
        return ["13a"]
    if counts["kana"] > WITH_KANA * (counts["kana"] + counts["han"]):
        return ["ja-mecab", "char"]
    most = max(counts, key=lambda script: counts[script])
    return {"han": ["zh"], "hangul": ["ko-mecab", "char"]}.get(most, ["char"])


def overlap(outputs: list[str], references: list[list[str]]) -> dict[str, Any]:
    """BLEU and chrF with their signatures; no BLEU if no reference has four tokens, only a note without sacrebleu."""
    try:
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        return {"overlap_note": "BLEU and chrF need sacrebleu; run: pip install sacrebleu"}

    most = max(map(len, references))
    # The i-th references of all outputs, None where there is none: sacrebleu takes it, though its types do not say so.
    streams: list[list[Any]] = [[listed[i] if i < len(listed) else None for listed in references] for i in range(most)]
    texts = [text for listed in references for text in listed]
    bleu = _bleu(texts)
    chrf = CHRF()
    found: dict[str, Any] = {}
    if any(len(bleu.tokenizer(text).split()) >= bleu.max_ngram_order for text in texts):
        found |= {"bleu": bleu.corpus_score(outputs, streams).score, "bleu_signature": str(bleu.get_signature())}
    found["chrf"] = chrf.corpus_score(outputs, streams).score
    return found | {"chrf_signature": str(chrf.get_signature())}


def _bleu(texts: list[str]) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    for name in tokenizations(texts):
        try:
            return BLEU(tokenize=name)
        except RuntimeError:  # a package that this tokenization needs is not installed
            continue
    raise AssertionError("the last tokenization needs no package")
