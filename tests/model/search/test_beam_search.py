"""The beam search against those of the field, `transformers` and CTranslate2, on a random model that all three have."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import ctranslate2
import pytest
import torch
import transformers

from attendant.model.importers.formats import marian
from attendant.model.search import reference
from attendant.model.search.decode import decode_all
from attendant.model.text.tokenizer import EOS
from attendant.model.transformer import Transformer
from tests.model.importers.test_marian import make_marian
from tests.support.foreign import names_to_foreign, sentences

LIMIT = 12  # tokens of a target, the end token included
PENALTIES = [0.0, 0.6, 1.0, 2.0]
NEVER = -30_000.0  # a bias that leaves a class no probability
AGREEMENT = 0.99  # the rest may be ties and rounding


@dataclass(frozen=True)
class Peers:
    """One model in three libraries."""

    ours: Transformer
    sources: list[list[int]]  # in our ids
    foreign_sources: list[list[int]]  # in transformers' ids, the end token included
    to_foreign: dict[int, int]  # target ids to transformers'
    tokens: list[str]  # by transformers' ids
    huggingface: transformers.MarianMTModel
    translator: ctranslate2.Translator

    def ask_huggingface(self, count: int, **options: object) -> list[tuple[tuple[int, ...], float]]:
        """(ids, score) of every hypothesis for the first `count` sources."""
        pad, end = self.huggingface.config.pad_token_id, self.huggingface.config.eos_token_id
        rows = self.foreign_sources[:count]
        width = max(map(len, rows))
        found = self.huggingface.generate(
            torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows]),
            attention_mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
            max_length=1 + LIMIT,
            do_sample=False,
            forced_eos_token_id=None,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        answers = [row[1:] for row in found.sequences.tolist()]
        ids = [tuple(row[: row.index(end)] if end in row else [i for i in row if i != pad]) for row in answers]
        scores = found.sequences_scores.tolist() if options["num_beams"] != 1 else [0.0] * len(ids)
        return list(zip(ids, scores, strict=True))

    def foreign(self, ids: tuple[int, ...] | list[int]) -> tuple[int, ...]:
        return tuple(self.to_foreign[i] for i in ids)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Peers:
    path = tmp_path_factory.mktemp("beams")
    model = make_marian(path / "opus")
    ids = json.loads((path / "opus" / "vocab.json").read_text(encoding="utf-8"))
    pad = ids["<pad>"]
    with torch.no_grad():
        model.model.shared.weight[pad] = 0  # CTranslate2's decoder starts from a zero vector
        model.final_logits_bias[0, pad] = NEVER  # instead of bad_words_ids, which do not renormalize
        model.final_logits_bias[0, 0] += 2.0  # so that targets end
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, bos_token_id=pad
    )
    model.save_pretrained(path / "opus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its tokenizer recommends a package
        ctranslate2.converters.TransformersConverter(str(path / "opus")).convert(str(path / "converted"))
    imported = marian.read(path / "opus")
    special, names = [pad, ids["<unk>"], pad, 0], ids | {"fra": ids[">>fra<<"], "deu": ids[">>deu<<"]}
    of_source, of_target = (names_to_foreign(imported, side, names, special) for side in ("source", "target"))
    sources = [encoding.ids for encoding in imported.source.encode_batch(sentences(60))]
    return Peers(
        imported.load(),
        sources,
        [[of_source[i] for i in (*source, EOS)] for source in sources],
        of_target,
        list(ids),
        model,
        ctranslate2.Translator(str(path / "converted"), compute_type="float32", inter_threads=1, intra_threads=1),
    )


@pytest.fixture
def remembered(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reference search asks the model once for each prefix."""
    monkeypatch.setattr(reference, "next_logprobs", _remembered(peers.ours))


@functools.cache
def _remembered(model: Transformer):
    compute, known = reference.next_logprobs, {}

    def next_logprobs(_: Transformer, source: list[int], prefix: tuple[int, ...]) -> list[float]:
        key = (tuple(source), prefix)
        if key not in known:
            known[key] = compute(model, source, prefix)
        return known[key]

    return next_logprobs


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_the_search_is_that_of_transformers(peers: Peers, early_stopping: bool | str) -> None:
    count, agreed, compared = 40, 0, 0
    for beam_size in range(1, 6):
        for penalty in PENALTIES if beam_size > 1 else [1.0]:
            options = {"early_stopping": early_stopping, "length_penalty": penalty} if beam_size > 1 else {}
            theirs = peers.ask_huggingface(count, num_beams=beam_size, num_return_sequences=beam_size, **options)
            for i, source in enumerate(peers.sources[:count]):
                ours = reference.beam(peers.ours, source, beam_size, penalty, beam_size, LIMIT, early_stopping)
                wanted = theirs[i * beam_size : (i + 1) * beam_size]
                same = [peers.foreign(h.ids) for h in ours] == [ids for ids, _ in wanted]
                agreed, compared = agreed + same, compared + 1
                if same and beam_size > 1:
                    assert [h.score(penalty) for h in ours] == pytest.approx([score for _, score in wanted], abs=1e-4)
    assert agreed >= AGREEMENT * compared, f"{agreed} of {compared}"


@pytest.mark.parametrize("beam_size", range(1, 6))
def test_with_early_stopping_the_search_is_that_of_ctranslate2(peers: Peers, beam_size: int) -> None:
    agreed, pieces = 0, [[peers.tokens[i] for i in row] for row in peers.foreign_sources]
    for penalty in PENALTIES:
        found = peers.translator.translate_batch(
            pieces,
            beam_size=beam_size,
            length_penalty=penalty,
            max_decoding_length=LIMIT,
            min_decoding_length=0,
            return_end_token=True,  # only then does its length count the end token
        )
        theirs = [[token for token in answer.hypotheses[0] if token != "</s>"] for answer in found]
        ours = decode_all(peers.ours, peers.sources, beam_size, penalty, LIMIT, early_stopping=True)
        agreed += sum(
            [peers.tokens[i] for i in peers.foreign(ids)] == wanted for ids, wanted in zip(ours, theirs, strict=True)
        )
    compared = len(PENALTIES) * len(pieces)
    assert agreed >= AGREEMENT * compared, f"{agreed} of {compared}"


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("beam_size", [2, 4])
def test_the_ways_to_stop_are_the_same_in_the_batched_search(
    peers: Peers, beam_size: int, early_stopping: bool | str
) -> None:
    sources = peers.sources[:12]
    for penalty in PENALTIES:
        wanted = [
            list(reference.beam(peers.ours, source, beam_size, penalty, 1, LIMIT, early_stopping)[0].ids)
            for source in sources
        ]
        assert decode_all(peers.ours, sources, beam_size, penalty, LIMIT, early_stopping) == wanted


def test_the_ways_to_stop_differ(peers: Peers) -> None:
    found = [decode_all(peers.ours, peers.sources, 4, 2.0, LIMIT, early) for early in (True, False, "never")]
    assert len({str(answers) for answers in found}) == 3
