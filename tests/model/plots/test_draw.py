"""Plots: what rows and columns stand for, readable labels, legends beside the curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure

from attendant.model.checkpoint import TrainedModel
from attendant.model.errors import UserError
from attendant.model.plots import draw as plots
from attendant.model.plots import fonts
from attendant.model.plots.labels import label
from attendant.model.search.reference import greedy, next_logprobs
from attendant.model.text.tokenizer import BOS, EOS, PAD, Tokenizer, learn
from tests.support.small_models import make_model

ZH = "今天天气很好"


def trained(source: Tokenizer, target: Tokenizer, seed: int = 3) -> TrainedModel:
    model = make_model(seed, source_vocab=source.size, target_vocab=target.size, max_length=12)
    return TrainedModel(model.config, model, source, target)


@pytest.fixture
def letters() -> TrainedModel:
    return trained(learn("chars", ["abcdef"]), learn("words", ["U V W X Y Z"]))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures in place of files."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figure.draw_without_rendering()
        figures.append(figure)
        return path

    monkeypatch.setattr(plots, "_save", keep)
    return figures


@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_labelled_by_the_token_that_is_produced_at_its_step(seed: int) -> None:
    model = trained(learn("chars", ["abcdef"]), learn("words", ["U V W X Y Z"]), seed)
    found = plots.attention_of(model, "fade")
    names = {label(model.target, i): i for i in range(model.target.size)}
    read = [names[text] for text in found.read]
    assert read[0] == BOS
    for step, text in enumerate(found.produced):
        logprobs = np.array(next_logprobs(model.model, model.source.encode("fade"), tuple(read[1 : step + 1])))
        logprobs[[PAD, BOS]] = -np.inf
        assert names[text] == logprobs.argmax()
    for layer in found.weights.cross:
        assert layer.shape[2:] == (len(found.produced), len(found.source))
    for layer in found.weights.decoder:
        assert layer.shape[2:] == (len(found.produced), len(found.read))


def test_a_model_s_start_tokens_are_read_before_its_answer(letters: TrainedModel) -> None:
    plain = plots.attention_of(letters, "fade")
    start = letters.target.encode("X U")
    found = plots.attention_of(replace(letters, start=start), "fade")
    assert found.read[:3] == [plain.read[0], "X", "U"]
    assert found.produced[:2] == ["X", "U"]
    assert found.produced[:-1] == found.read[1:]
    wanted = greedy(letters.model, letters.source.encode("fade"), 12 - 1 - 2, tuple(start))
    assert found.produced[2 : 2 + len(wanted.ids)] == [label(letters.target, i) for i in wanted.ids]


def test_an_answer_that_does_not_end_has_no_row_without_its_token() -> None:
    for seed in range(20):
        found = plots.attention_of(trained(learn("chars", ["ab"]), learn("words", ["U V"]), seed), "ab")
        assert len(found.read) == len(found.produced)


def test_tokens_of_byte_level_bpe_are_text() -> None:
    tokenizer = learn("bpe:290", [f" tian {ZH}"] * 50)
    labels = {label(tokenizer, i) for i in range(tokenizer.size)}
    assert {"␣tian", "天", "<E5>", "<start>", "<end>"} <= labels
    assert not [text for text in labels if "Ġ" in text or "æ°" in text]


def test_white_space_is_visible() -> None:
    tokenizer = learn("chars", ["a b\tc"])
    assert [label(tokenizer, i) for i in (*tokenizer.encode("a b\t"), EOS)] == ["a", "␣", "b", "\\t", "<end>"]


def test_characters_that_no_font_has_are_code_points_with_a_note_and_no_glyph_is_missing(
    drawn: list[Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    monkeypatch.setattr(plots, "load_trained", lambda _: trained(learn("chars", [ZH]), learn("words", ["a$ b$ 好"])))
    assert len(plots.plot_attention(tmp_path, "今天好", tmp_path)) == 3  # a warning of matplotlib would be an error
    assert "apt-get install fonts-noto-cjk" in capsys.readouterr().out
    for figure, asked in zip(drawn, ("x", "y"), strict=False):
        labels = [text.get_text() for text in getattr(figure.axes[0], f"get_{asked}ticklabels")()]
        assert all(text.isascii() for text in labels)
    assert [text.get_text() for text in drawn[0].axes[0].get_xticklabels()] == ["U+4ECA", "U+5929", "U+597D", "<end>"]


def test_a_font_that_has_the_characters_is_found() -> None:
    bundled = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    own, other = (fonts._charmap(str(bundled / f"{name}.ttf")) for name in ("DejaVuSans", "STIXNonUni"))
    text = "".join(sorted(other - own)[:3])
    assert text
    assert fonts.families_for([text], []) == ([fonts.OWN], set(text))
    families, missing = fonts.families_for([text], [str(bundled / "cmr10.ttf"), str(bundled / "STIXNonUni.ttf")])
    assert families == [fonts.OWN, "STIXNonUnicode"]
    assert not missing


def test_a_file_that_is_no_font_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    assert fonts.families_for([ZH], [str(tmp_path / "broken.ttf")]) == ([fonts.OWN], set(ZH))


def test_axes_and_figures_have_their_names(
    letters: TrainedModel, drawn: list[Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "load_trained", lambda _: letters)
    plots.plot_attention(tmp_path, "abc", tmp_path)
    said = [(f.get_suptitle(), f.get_supylabel(), f.get_supxlabel()) for f in drawn]
    assert said == [
        ("Encoder self-attention", "source token", "source token attended to"),
        ("Decoder self-attention", "target token produced", "target token attended to"),
        ("Decoder-to-encoder attention", "target token produced", "source token attended to"),
    ]


def test_legends_cover_nothing(drawn: list[Figure], tmp_path: Path) -> None:
    entries = [{"kind": "train", "step": s, "loss": 1 / s, "learning_rate": s} for s in range(1, 20)]
    rates = {"sequence_error_rate": 9.0, "token_error_rate": 3.0, "sequence_error_rate_ignoring": 2.0}
    entries += [{"kind": "valid", "step": s, "loss": 1 / s, **rates} for s in range(1, 20)]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries), encoding="utf-8")
    plots.plot_history(tmp_path, tmp_path)
    plots.plot_positions(tmp_path)
    legends = [(legend, figure) for figure in drawn for legend in figure.legends]
    assert len(legends) == 3
    for legend, figure in legends:
        for axes in figure.axes:
            assert axes.get_legend() is None
            assert not legend.get_window_extent().overlaps(axes.get_tightbbox())


def test_a_source_that_the_service_refuses_is_refused(letters: TrainedModel) -> None:
    with pytest.raises(UserError, match=r"lacks: 'Z', 'ß'; leave it out, or add --allow-unknown"):
        plots.attention_of(letters, "aZbß")
    assert plots.attention_of(letters, "aZ", allow_unknown=True).source == ["a", "<unknown>", "<end>"]
    with pytest.raises(UserError, match="has 12 tokens, and the model reads 11"):
        plots.attention_of(letters, "a" * 12)


def test_a_source_is_normalized_as_it_is_served(letters: TrainedModel) -> None:
    normalizing = trained(letters.source.normalizing(("lower", "strip")), letters.target)
    assert plots.attention_of(normalizing, " FAD").source == ["f", "a", "d", "<end>"]
    with pytest.raises(UserError, match="--source is empty"):
        plots.attention_of(normalizing, "  ")
