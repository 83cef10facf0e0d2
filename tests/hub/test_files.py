"""What is downloaded is what importers read, and what they cannot read is refused before that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attendant.hub.errors import HubError
from attendant.hub.files import SMALL, WEIGHTS, check_type
from attendant.hub.kinds import FORMATS, LACKING
from attendant.model.importers import cli
from attendant.model.importers.families import hf_vocabulary, huggingface
from attendant.model.importers.formats import m2m, marian, pegasus, t5


def test_the_kinds_are_imported_by_formats_that_there_are_and_none_is_refused_too() -> None:
    assert set(FORMATS.values()) <= set(cli.FORMATS)
    assert not FORMATS.keys() & LACKING.keys()


@pytest.mark.parametrize("kind", ["longt5", "switch_transformers", "umt5", "pegasus_x", "blenderbot-small"])
def test_a_kind_that_is_near_one_of_ours_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(HubError, match=rf"^acme/x cannot be imported: .* '{kind}': {LACKING[kind]}. What can be"):
        check_type(tmp_path / "config.json", "acme/x")


@pytest.mark.parametrize("kind", ["llama", None, [], {}, 5])
def test_any_other_kind_is_refused_with_what_can_be_imported(kind: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(HubError, match=r"What can be imported is marian, .* mt5\.$"):
        check_type(tmp_path / "config.json", "acme/x")


def test_the_files_are_those_that_importers_name() -> None:
    named = [huggingface.CONFIG, huggingface.GENERATION, m2m.SMALL100_FILE, t5.SPM, pegasus.SPM]
    named += [marian.VOCAB, marian.TARGET_VOCAB, marian.SOURCE_SPM, marian.TARGET_SPM]
    named += [hf_vocabulary.SPM, hf_vocabulary.TOKENIZER, hf_vocabulary.TOKENIZER_CONFIG, hf_vocabulary.ADDED]
    assert set(named) <= set(SMALL)
    assert WEIGHTS == (huggingface.SAFE, huggingface.PICKLED)
