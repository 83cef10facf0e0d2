from __future__ import annotations

import math

import pytest

from attendant.model.config import PRESETS, ModelConfig, TrainConfig, build, model_from_json, parse_setting, to_json
from attendant.model.errors import ConfigError


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset: str) -> None:
    model, training = build(preset, {})
    assert training.problems() == []
    assert ModelConfig(**{**to_json(model), "source_vocab": 9, "target_vocab": 9}).problems() == []


def test_the_papers_models() -> None:
    base, training = build("base", {})
    assert (base.d_model, base.d_ff, base.heads, base.encoder_layers, base.decoder_layers) == (512, 2048, 8, 6, 6)
    assert (training.beta1, training.beta2, training.epsilon, training.warmup) == (0.9, 0.98, 1e-9, 4000)
    assert (base.dropout, training.label_smoothing) == (0.1, 0.1)
    big, _ = build("big", {})
    assert (big.d_model, big.d_ff, big.heads, big.dropout) == (1024, 4096, 16, 0.3)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        build("tiny", {"heads": 5, "dropout": 1.5, "steps": 0, "norm": "middle"})
    for part in ("heads must divide d_model", "dropout must be in [0, 1), not 1.5", "steps must be at least 1"):
        assert part in str(error.value)
    assert "norm takes one of post, pre, not 'middle'" in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"), [("dropout=0.2", 0.2), ("steps=7", 7), ("bias=false", False), ("norm=pre", "pre"), ("seed=0", 0)]
)
def test_a_setting_has_the_type_of_its_option(text: str, value: object) -> None:
    found = parse_setting(text)[1]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("layers=3", r"--set layers: there is no such option; did you mean encoder_layers or decoder_layers\?"),
        ("dropuot=0.2", r"--set dropuot: there is no such option; did you mean dropout\?"),
        ("dropout", "--set takes name=value"),
        ("steps=many", "--set steps= takes a whole number, not 'many'"),
        ("bias=maybe", "--set bias= takes one of true, false, not 'maybe'"),
        ("source_vocab=3", "--set takes name=value"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_setting(text)


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="--preset takes one of tiny, g2p, base, big, not 'huge'"):
        build("huge", {})


def test_a_config_of_another_version_is_refused(tmp_path: object) -> None:
    with pytest.raises(ConfigError, match="does not know: flux"):
        model_from_json({"flux": 1}, "config.json")  # type: ignore[arg-type]


def test_three_ways_of_tying_need_a_shared_vocabulary() -> None:
    with pytest.raises(ConfigError, match="tie=three needs one tokenizer"):
        ModelConfig(source_vocab=9, target_vocab=9, tie="three").validate()


def test_options_have_one_default_each() -> None:
    assert not set(to_json(ModelConfig())) & set(to_json(TrainConfig()))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("schedule", "rate"), [("paper", 1.0), ("cosine", 1e-3), ("trapezoid", 1e-3)])
def test_another_schedule_than_the_presets_has_a_rate_of_its_own(preset: str, schedule: str, rate: float) -> None:
    """The factor 1.0 of the paper's schedule would be a peak of 1.0, at which nothing is learnt."""
    own = PRESETS[preset].get("schedule", "paper") == schedule
    training = build(preset, {"schedule": schedule})[1]
    assert training.learning_rate == (PRESETS[preset].get("learning_rate", rate) if own else rate)


@pytest.mark.parametrize(
    ("schedule", "rate", "sentence"),
    [
        ("cosine", 1.0, "learning_rate=1 cannot be meant: with schedule=cosine it is the peak rate, at most 0.1"),
        ("trapezoid", 0.5, "learning_rate=0.5 cannot be meant: with schedule=trapezoid it is the peak rate"),
        ("paper", 3e-4, "learning_rate=0.0003 cannot be meant: .* a factor of the paper's rate, from 0.01 to 100"),
        ("cosine", -1.0, "learning_rate must be above 0, not -1.0"),
        ("cosine", math.nan, "learning_rate must be above 0, not nan"),
    ],
)
def test_a_rate_that_cannot_be_meant_is_refused(schedule: str, rate: float, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build("base", {"schedule": schedule, "learning_rate": rate})


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_no_optimizer_takes_a_rate_that_is_not_finite(rate: float) -> None:
    with pytest.raises(ConfigError, match="learning_rate must be above 0"):
        build("base", {"optimizer": "sgd", "learning_rate": rate})


def test_plain_sgd_may_have_a_large_rate() -> None:
    assert build("base", {"schedule": "cosine", "optimizer": "sgd", "learning_rate": 1.0})[1].learning_rate == 1.0


def test_a_select_ignore_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match="select_ignore takes a regular expression"):
        build("tiny", {"select_ignore": "["})
