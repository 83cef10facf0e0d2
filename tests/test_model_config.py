from __future__ import annotations

import pytest

from model.config import PRESETS, ModelConfig, TrainConfig, build, model_from_json, parse_setting, to_json
from model.errors import ConfigError


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
        ("dropuot=0.2", "--set takes name=value with a name of d_model, "),
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
