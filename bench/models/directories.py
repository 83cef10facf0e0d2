"""Models of the shapes that people download, with random weights, as directories of Hugging Face's library.

NLLB-600M (m2m), BART-large and T5-large: their options, vocabularies as large as theirs, and weights with which
answers are words that go on changing (`bench.models.random_model`). A text's word `t<i>` is one token. In the order of
rows, the tokens that are not special are t4, t5, ..., which are their ids once they are imported; `names_of` names them
so for CTranslate2.

    python -m bench.models.directories write m2m DIRECTORY [--small]
    python -m bench.models.directories convert m2m DIRECTORY CTRANSLATE2 --precision int8 [--small]
    python -m bench.models.directories bundle RUN BUNDLE     f32 and int8, without the proof
"""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.models.peers import COMPUTE_TYPES
from bench.models.random_model import ATTENTION, FEED_FORWARD, LOGITS, PAIRS, SHARPNESS
from bench.versus.engines import FIRST_WORD, PEER_NAMES, SOURCE_LENGTH

SPACE = "▁"  # SentencePiece's
CHARACTERS = "t0123456789"
SEED = 1
PRE_NORM = 6.0  # times what sub-layers add to the embedding, which tied with the output would repeat itself
T5_EXTRA = 100  # sentinels, which its reader adds
LETTERS = str.maketrans("0123456789", "abcdefghij")  # byte pairs do not join letters and digits
LANGUAGES = ("eng_Latn", "fra_Latn")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model's size, and the special tokens by its own ids."""

    name: str  # as people call it
    format: str  # of attendant import
    vocabulary: int
    layers: int
    d_model: int = 1024
    d_ff: int = 4096
    heads: int = 16
    max_length: int = 1024
    pad: int = 1
    unk: int = 3
    start: int = 2
    end: int = 2

    @property
    def special(self) -> dict[int, str]:
        """What CTranslate2 looks for by name; a start of its own is there only where it is not another one."""
        blank, unknown, _, end = PEER_NAMES
        return {self.pad: blank, self.unk: unknown, self.end: end}


NLLB = Family(name="NLLB-600M", format="m2m", vocabulary=256_206, layers=12)
BART = Family(name="BART-large", format="bart", vocabulary=50_265, layers=12)
T5 = Family(name="T5-large", format="t5", vocabulary=32_128, layers=24, max_length=512, pad=0, unk=2, start=0, end=1)
FAMILIES = {family.format: family for family in (BART, NLLB, T5)}


def small(family: Family) -> Family:
    """The same kind of model, in seconds."""
    return replace(family, vocabulary=400, layers=1, d_model=32, d_ff=64, heads=4, max_length=24)


def names_of(family: Family) -> list[str]:
    """CTranslate2's names of the rows: ids as they are once imported, and the special tokens."""
    others = iter(range(FIRST_WORD, FIRST_WORD + family.vocabulary))
    return [family.special.get(row) or f"t{next(others)}" for row in range(family.vocabulary)]


def write_directory(family: Family, path: Path) -> None:
    """As `save_pretrained` writes it, with the tokenizer's files, and samples.tsv."""
    import torch

    path.mkdir(parents=True)
    words = (write_byte_pairs if family.format == "bart" else write_sentencepiece)(family, path)
    write_samples(family, path)
    state = torch.get_rng_state()
    torch.manual_seed(SEED)
    model = empty_model(family)
    randomize(model, family, words)
    torch.set_rng_state(state)
    model.save_pretrained(path)


def empty_model(family: Family) -> Any:
    import transformers

    ids = {
        "vocab_size": family.vocabulary,
        "pad_token_id": family.pad,
        "eos_token_id": family.end,
        "decoder_start_token_id": family.start,
    }
    if family.format == "t5":
        sizes = {"d_ff": family.d_ff, "d_kv": family.d_model // family.heads, "num_heads": family.heads}
        layers = {"num_layers": family.layers, "num_decoder_layers": family.layers}
        config = transformers.T5Config(d_model=family.d_model, **sizes, **layers, **ids)
        return transformers.T5ForConditionalGeneration(config)
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", family.layers), ("ffn_dim", family.d_ff), ("attention_heads", family.heads))
    }
    options: dict[str, Any] = {"d_model": family.d_model, "max_position_embeddings": family.max_length, **sizes, **ids}
    if family.format == "bart":
        asked = {"normalize_before": False, "normalize_embedding": True}  # as its files say, for CTranslate2
        config = transformers.BartConfig(**options, **asked, bos_token_id=0, forced_eos_token_id=None)
        return transformers.BartForConditionalGeneration(config)
    return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**options, scale_embedding=True))


def randomize(model: Any, family: Family, words: range) -> None:
    """Weights with which answers are words and differ by their sources; `words` are the rows of such."""
    import torch

    t5, head = family.format == "t5", family.d_model // family.heads
    more = 1.0 if family.format == "bart" else PRE_NORM
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "shared" in name or "embed_tokens" in name:
                weight.normal_(std=1.0 if t5 else family.d_model**-0.5)
                weight[: words.start], weight[words.stop :] = 0.0, 0.0
            elif "embed_positions" in name:
                weight.normal_(std=family.d_model**-0.5)
            elif "relative_attention_bias" in name:
                weight.normal_()
            elif weight.dim() == 2:
                torch.nn.init.xavier_uniform_(weight)
                if "fc2" in name or ".wo." in name:
                    weight.sub_(weight.mean(1, keepdim=True)).mul_(FEED_FORWARD * more)
                elif "out_proj" in name or name.endswith("n.o.weight"):
                    weight.mul_(ATTENTION * more)
                elif any(part in name for part in ("q_proj", "k_proj", "n.q.", "n.k.")):
                    weight.mul_(SHARPNESS * (head**-0.25 if t5 else 1.0))
        last = model.decoder.final_layer_norm if t5 else None
        if family.format == "m2m":
            last = model.model.decoder.layer_norm
        elif family.format == "bart":
            last = model.model.decoder.layers[-1].final_layer_norm
        last.weight.mul_(LOGITS)


def write_sentencepiece(family: Family, path: Path) -> range:
    """A Unigram model with a piece for each word, under the names that the formats look for; the words' rows."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as protocol

    t5, learnt = family.format == "t5", io.BytesIO()
    special = (
        {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        if t5
        else {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(CHARACTERS)]),
        model_writer=learnt,
        vocab_size=30,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **special,
    )
    model = protocol.ModelProto.FromString(learnt.getvalue())
    before = len(model.pieces)
    count = family.vocabulary - before - (T5_EXTRA if t5 else len(LANGUAGES))
    for i in range(count):
        model.pieces.add(piece=f"{SPACE}t{i}", score=-5.0)
    (path / ("spiece.model" if t5 else "sentencepiece.bpe.model")).write_bytes(model.SerializeToString())
    if not t5:
        tokens = [*(piece.piece for piece in model.pieces), *LANGUAGES]
        (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
        listed = {"additional_special_tokens": list(LANGUAGES)}
        (path / "special_tokens_map.json").write_text(json.dumps(listed), encoding="utf-8")
    return range(before, before + count)


def write_samples(family: Family, path: Path) -> None:
    """Pairs of random words."""
    rng = np.random.default_rng(SEED)
    most = min(SOURCE_LENGTH, family.max_length // 2) - 1
    lines = [
        "\t".join(words_of(rng.integers(0, family.vocabulary // 2, most), family) for _ in "st") for _ in range(PAIRS)
    ]
    (path / "samples.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def words_of(numbers: np.ndarray[Any, Any], family: Family) -> str:
    found = " ".join(f"t{number}" for number in numbers)
    return found.translate(LETTERS) if family.format == "bart" else found


def write_byte_pairs(family: Family, path: Path) -> range:
    """GPT-2's byte pairs, merged letter by letter: words are numbers in letters, whose beginnings are words too."""
    from tokenizers import pre_tokenizers

    space = "Ġ"
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), f"{space}t"]
    before = len(tokens)
    tokens += [f"{space}t{i}".translate(LETTERS) for i in range(family.vocabulary - before)]
    (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    merges = [f"{space} t", *(f"{token[:-1]} {token[-1]}" for token in tokens[before:])]
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    return range(before, family.vocabulary)


def convert_peer(family: Family, path: Path, out: Path, precision: str) -> None:
    """The directory by CTranslate2's own loader, with our names of the tokens."""
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *_: Any, **__: Any) -> Names:
            return Names(family)

    Converter(str(path)).convert(str(out), quantization=COMPUTE_TYPES[precision])


class Names:
    """What CTranslate2 asks a tokenizer for."""

    num_madeup_words = 0

    def __init__(self, family: Family) -> None:
        self._names = names_of(family)
        self.pad_token, self.unk_token, self.eos_token = (
            family.special[i] for i in (family.pad, family.unk, family.end)
        )
        self.bos_token, self.unk_token_id = self._names[family.start], family.unk
        self.special_tokens_map: dict[str, list[str]] = {}

    def get_vocab(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self._names)}

    def convert_ids_to_tokens(self, row: int) -> str:
        return self._names[row]


def main() -> None:
    parser = argparse.ArgumentParser(description="Random models in the layouts that are imported.")
    parts = parser.add_subparsers(dest="part", required=True)
    for name, paths in (("write", ("out",)), ("convert", ("path", "out")), ("bundle", ("path", "out"))):
        part = parts.add_parser(name)
        if name != "bundle":
            part.add_argument("family", choices=FAMILIES)
            part.add_argument("--small", action="store_true")
        for each in paths:
            part.add_argument(each, type=Path)
    parts.choices["convert"].add_argument("--precision", choices=COMPUTE_TYPES, required=True)
    options = parser.parse_args()
    if options.part == "bundle":
        from bench.models.random_model import write_random_bundle

        write_random_bundle(options.path, options.out)
        return
    family = small(FAMILIES[options.family]) if options.small else FAMILIES[options.family]
    if options.part == "write":
        write_directory(family, options.out)
    else:
        convert_peer(family, options.path, options.out, options.precision)


if __name__ == "__main__":
    main()
