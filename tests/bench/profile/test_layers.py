"""The table of docs/self-attention.md, by what the layers do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from bench.profile.layers import HEADS, KERNEL, NAMES, draw, make_layer, operations

WIDTH = 8 * HEADS
ROOT = Path(__file__).parents[3]
RESULTS = json.loads((ROOT / "bench" / "results" / "amd-avx2" / "layers.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "self-attention.md").read_text(encoding="utf-8")


def layers_between(name: str, length: int) -> int:
    """How many layers it takes until the last position's output depends on the first one's input."""
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    y, layer = x, make_layer(name, WIDTH)
    for count in range(1, length + 1):
        y = layer(y)
        (gradient,) = torch.autograd.grad(y[0, -1].sum(), x, retain_graph=True)
        if gradient[0, 0].abs().max() > 0:
            return count
    raise AssertionError("the first position is never seen")


@pytest.mark.parametrize(("length", "convolutions"), [(3, 2), (9, 8), (17, 16)])
def test_attention_and_recurrence_see_all_positions_in_one_layer_and_a_convolution_its_neighbours(
    length: int, convolutions: int
) -> None:
    assert layers_between("self-attention", length) == layers_between("recurrent", length) == 1
    assert layers_between("convolutional", length) == convolutions // (KERNEL // 2)


def test_self_attention_needs_the_fewest_operations_up_to_a_length_of_the_width() -> None:
    for length in (WIDTH // 4, WIDTH, 4 * WIDTH):
        counts = {name: operations(name, length, WIDTH) for name in NAMES}
        assert (counts["self-attention"] <= counts["recurrent"]) == (length <= WIDTH)


def test_the_layers_are_drawn_as_png(tmp_path: Path) -> None:
    rows = [{"layer": name, "ms": {"16": 1, "32": 2}, "million_operations": {"16": 1, "32": 2}} for name in NAMES]
    draw(rows, tmp_path / "layers.png")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_every_picture_of_the_page_is_there() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE)
    assert len(pictures) >= 4
    assert all((ROOT / "docs" / picture).is_file() for picture in pictures)


def test_the_page_has_the_committed_figures() -> None:
    for row in RESULTS["rows"]:
        figures = [f"{row['ms'][n]:.3f} ms" for n in ("64", "512", "2048")]
        assert f"| {row['layer']} | {' | '.join(figures)} | n^{row['exponent']} |" in PAGE
