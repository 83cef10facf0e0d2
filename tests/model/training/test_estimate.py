from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import attendant
from attendant.model import checkpoint
from attendant.model.config import build
from attendant.model.errors import ConfigError
from attendant.model.training import estimate
from attendant.model.training.estimate import (
    CorpusSize,
    choose_preset,
    duration,
    measure_corpus,
    preset_for,
    training_seconds,
)
from tests.model.training.test_train import LINES

SMALL = CorpusSize(pairs=3000, tokens=30_000, longest=40, source_vocab=20, target_vocab=30)
MIDDLE = CorpusSize(pairs=120_000, tokens=1_800_000, longest=40, source_vocab=33, target_vocab=73)
LARGE = CorpusSize(pairs=4_000_000, tokens=200_000_000, longest=200, source_vocab=32_000, target_vocab=32_000)
LAPTOP, CARD = 1e11, 1e14  # operations a second


@pytest.mark.parametrize(
    ("corpus", "flops", "preset"),
    [
        (SMALL, LAPTOP, "tiny"), (SMALL, CARD, "tiny"), (MIDDLE, LAPTOP, "g2p"), (MIDDLE, CARD, "g2p"),
        (LARGE, LAPTOP, "g2p"), (LARGE, CARD, "base"), (LARGE, 1e6, "tiny"),
    ],
)  # fmt: skip
def test_the_preset_fits_the_corpus_and_the_machine(corpus: CorpusSize, flops: float, preset: str) -> None:
    assert choose_preset(corpus, flops, {})[0] == preset


def test_the_reason_says_what_spoke_against_a_larger_one() -> None:
    assert "base wants 20 million tokens" in choose_preset(MIDDLE, LAPTOP, {})[1]
    assert "base would take about" in choose_preset(LARGE, LAPTOP, {})[1]


def test_more_steps_and_larger_models_take_longer() -> None:
    def seconds(preset: str, **settings: int) -> float:
        return training_seconds(*build(preset, settings), MIDDLE, LAPTOP)

    assert seconds("tiny") < seconds("g2p") < seconds("base") < seconds("big")
    assert seconds("g2p", steps=2 * 10_500) == pytest.approx(2 * seconds("g2p"))


def test_a_corpus_is_measured_in_the_tokens_of_its_tokenizers(write_tsv: Callable[..., Path]) -> None:
    tsv = write_tsv("abc\tX Y", "ab\tX Z W")
    assert measure_corpus(tsv, "chars", "words") == CorpusSize(2, 10, 3, 4 + 3, 4 + 4)
    assert measure_corpus(tsv, "bpe:300", "bpe:400") == CorpusSize(2, 1 + 1 + 1 + 2, 5, 300, 400)


def test_a_preset_that_nobody_named_takes_the_longest_text(write_tsv: Callable[..., Path]) -> None:
    long = write_tsv(f"{'a' * 200}\tb")
    assert preset_for(long, {"shared": "chars"}, {}) == ("tiny", {"max_length": 256})
    assert preset_for(long, {"shared": "chars"}, {"max_length": 32}) == ("tiny", {"max_length": 32})
    assert preset_for(write_tsv("a\tb"), {"shared": "chars"}, {}) == ("tiny", {})


def test_a_preset_that_the_settings_do_not_fit_is_not_chosen() -> None:
    assert choose_preset(MIDDLE, LAPTOP, {"heads": 128})[0] == "g2p"  # 128 heads do not divide 64 features
    assert choose_preset(SMALL, LAPTOP, {"heads": 128})[0] == "g2p"
    with pytest.raises(ConfigError, match="heads must be at least 1, not 0"):
        choose_preset(SMALL, LAPTOP, {"heads": 0})


def test_under_torchrun_a_preset_is_asked_for(write_tsv: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--preset must be given under torchrun: one of tiny, g2p, base, big"):
        preset_for(write_tsv("a\tb"), {"shared": "chars"}, {})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (45, "45 s"), (170, "3 min"), (3600, "1 h"), (9600, "2 h 40 min"), (777_600, "9 days")],
)
def test_a_duration_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_training_says_what_it_is_before_its_first_step_and_what_comes_next(
    write_tsv: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tsv, out = str(write_tsv(*LINES)), tmp_path / "run"
    settings = ["--set=steps=2", "--set=validate_every=1", "--set=log_every=1", "--set=d_ff=32", "--threads=1"]
    assert attendant.main(["train", "--data", tsv, "--valid", tsv, "--out", str(out), *settings]) == 0
    said = capsys.readouterr().out
    before = said[: said.index("step 1:")]
    parameters = checkpoint.load_trained(out).model.parameter_count()
    for part in ("preset tiny: ", f"{parameters:,} parameters", "vocabulary: ", "200 pairs to train on", "up to 1,024"):
        assert part in before
    assert "time: about " in before
    assert "with 1 thread (--threads)" in before
    assert "step 2: validation loss " in said
    assert " nats per token" in said
    assert said.endswith(f"next: attendant export {out} --out {out}-bundle\n")


def test_a_resumed_run_keeps_its_own_options_without_a_preset(
    write_tsv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tsv = str(write_tsv(*LINES))
    arguments = ["train", "--data", tsv, "--valid", tsv, "--out", str(tmp_path / "run"), "--threads=1"]
    assert attendant.main([*arguments, "--preset=g2p", "--set=steps=1", "--set=d_model=16"]) == 0
    monkeypatch.setattr(estimate, "choose_preset", None)
    assert attendant.main([*arguments, "--resume", "--set=steps=2"]) == 0
    config = checkpoint.read_config(tmp_path / "run")
    assert (config["model"]["d_model"], config["train"]["optimizer"], config["train"]["steps"]) == (16, "muon", 2)
