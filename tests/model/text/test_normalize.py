from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import attendant
from attendant.model import checkpoint
from attendant.model.errors import ConfigError
from attendant.model.text import normalize
from attendant.model.text.tokenizer import UNK, learn
from attendant.model.training import recipe
from attendant.service.text.tokenizer import Tokenizer as ServedTokenizer
from tests.model.training.test_train import LINES, QUICK

ALL = ("lower", "nfc", "strip")
SPECIAL_IDS = {"pad": 0, "unk": 1, "bos": 2, "eos": 3}


def test_the_steps_are_applied_in_one_order_however_they_are_named() -> None:
    assert normalize.parse("strip, nfc,lower") == normalize.parse("lower,nfc,strip") == ALL
    assert normalize.parse(None) == ()
    with pytest.raises(ConfigError, match="--normalize takes a list of lower, nfc, strip, not 'upper'"):
        normalize.parse("lower,upper")


@pytest.mark.parametrize("kind", ["chars", "words", "bpe:300"])
def test_texts_that_are_the_same_once_normalized_have_the_same_ids(kind: str) -> None:
    tokenizer = learn(kind, ["café noir"]).normalizing(ALL)
    assert tokenizer.encode(" CAFE\N{COMBINING ACUTE ACCENT} Noir\t") == tokenizer.encode("café noir")
    assert UNK not in tokenizer.encode("Café NOIR")


def test_what_the_vocabulary_lacks_is_named_as_it_was_written(tmp_path: Path) -> None:
    tokenizer = learn("chars", ["café"]).normalizing(ALL)
    tokenizer.save(tmp_path / "t.json")
    served = ServedTokenizer(tmp_path / "t.json", SPECIAL_IDS)
    assert served.encode(" CAFÉ ") == tuple(tokenizer.encode("café"))
    for each in (tokenizer, served):
        assert each.unknown_pieces("  CAFÉ Zoë") == [" ", "Z", "o", "ë"]
        assert each.unknown_pieces("zoe\u0308") == ["z", "o", "e\u0308"]  # not the letter alone, which it may have


@pytest.fixture
def trained(write_tsv: Callable[..., Path], tmp_path: Path) -> list[str]:
    """The arguments of a training whose sources are written in both cases."""
    lines = [line if i % 2 else line.upper() for i, line in enumerate(LINES)]
    tsv = str(write_tsv(*lines, name="train.tsv"))
    sets = [f"--set={name}={value}" for name, value in {**QUICK, "steps": 4}.items()]
    arguments = ["train", "--preset=tiny", "--data", tsv, "--valid", tsv, "--out", str(tmp_path / "run"), *sets]
    assert attendant.main([*arguments, "--tokenizer=bpe:300", "--normalize=strip,lower"]) == 0
    return arguments


def test_a_run_records_its_normalization_and_keeps_to_it(
    trained: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((tmp_path / "run" / checkpoint.CONFIG).read_text("utf-8"))
    assert config["normalize"] == ["lower", "strip"]
    assert "--normalize lower,strip" in recipe.train_command(config)
    assert attendant.main([*trained, "--tokenizer=bpe:300", "--resume"]) == 1
    assert "other values of --normalize" in capsys.readouterr().err


def test_only_sources_are_normalized_and_ids_are_shared(trained: list[str], tmp_path: Path) -> None:
    model = checkpoint.load_trained(tmp_path / "run")
    assert model.source.encode(" AFK") == model.source.encode("afk")
    assert model.target.encode("K F A") != model.target.encode("k f a")
    assert model.source.encode("k") == model.target.encode("k")
