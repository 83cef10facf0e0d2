"""What is downloaded is what importers read."""

from __future__ import annotations

from attendant.hub.files import MODEL_TYPES, SMALL, WEIGHTS
from attendant.model.importers.families import hf_vocabulary, huggingface
from attendant.model.importers.formats import m2m, marian


def test_the_types_of_models_are_those_of_the_importers() -> None:
    assert set(MODEL_TYPES) == set(huggingface.COMMANDS)


def test_the_files_are_those_that_importers_name() -> None:
    named = [huggingface.CONFIG, huggingface.GENERATION, m2m.SMALL100_FILE]
    named += [marian.VOCAB, marian.TARGET_VOCAB, marian.SOURCE_SPM, marian.TARGET_SPM]
    named += [hf_vocabulary.SPM, hf_vocabulary.TOKENIZER, hf_vocabulary.TOKENIZER_CONFIG, hf_vocabulary.ADDED]
    assert set(named) <= set(SMALL)
    assert WEIGHTS == (huggingface.SAFE, huggingface.PICKLED)
