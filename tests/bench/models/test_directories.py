"""Random models in the layouts that are imported: our reader and CTranslate2's see the same model in one directory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attendant import main as attendant
from attendant.model.checkpoint import load_trained
from bench.models.directories import BART, FAMILIES, NLLB, T5, convert_peer, names_of, small, write_directory
from bench.models.random_model import write_random_bundle
from bench.versus.engines import CTranslate2Engine, OurEngine, sources
from bench.versus.import_large import LANGUAGE_FLAGS

needs_peer = pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")


def test_the_shapes_are_those_that_people_download() -> None:
    assert (NLLB.layers, NLLB.d_model, NLLB.d_ff, NLLB.heads, NLLB.vocabulary) == (12, 1024, 4096, 16, 256_206)
    assert (BART.layers, BART.d_model, BART.d_ff, BART.heads, BART.vocabulary) == (12, 1024, 4096, 16, 50_265)
    assert (T5.layers, T5.d_model, T5.d_ff, T5.heads, T5.vocabulary) == (24, 1024, 4096, 16, 32_128)


@needs_peer
@pytest.mark.parametrize("kind", FAMILIES)
def test_an_imported_directory_answers_as_ctranslate2_does(kind: str, tmp_path: Path) -> None:
    family, path, run = small(FAMILIES[kind]), tmp_path / kind, tmp_path / "run"
    write_directory(family, path)
    languages = LANGUAGE_FLAGS.get(kind, ())
    given = ["--samples", str(path / "samples.tsv"), *languages]
    assert attendant(["import", kind, str(path), "--out", str(run), *given]) == 0
    convert_peer(family, path, tmp_path / "peer", "fp32")
    write_random_bundle(run, tmp_path / "bundle")
    trained, asked = load_trained(run), sources(6, 9, family.vocabulary)
    ours, peer = OurEngine(tmp_path / "bundle", "fp32", 1), CTranslate2Engine(tmp_path / "peer", "fp32", 1)
    tokens = set[int]()
    for beam_size in (1, 4):
        found = [answer.ids for answer in ours.answer(asked, beam_size, 12)]
        assert [answer.ids for answer in peer.answer(asked, beam_size, 12)] == found
        tokens.update(*found)
    assert len(tokens) > 12  # not one that is repeated
    ours.close()
    peer.close()
    [word] = {len(trained.source.encode("t5" if kind != "bart" else " tf")) - bool(languages) - (kind == "bart")}
    assert word == 1


def test_every_row_has_a_name_of_its_own() -> None:
    for family in FAMILIES.values():
        names = names_of(small(family))
        assert len(set(names)) == len(names) == small(family).vocabulary
        assert names[family.end] == "</s>"
