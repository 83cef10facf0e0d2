"""The alignment of a bundle: links without gold, and heads that find them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from export.alignment import LONGEST, Linked, agreement, choose_alignment, link, symmetric_links
from export.bundle import BundleError, read_bundle
from export.samples import calibration_pairs
from model.checkpoint import load_trained
from tests.conftest import make_model
from tests.exporting import edit_manifest, export_unproven, write_run

DEFAULT = Path(__file__).parent.parent / "model" / "default"


def test_links_are_the_largest_of_their_row_and_column() -> None:
    assert symmetric_links([[3.0, 1.0], [1.0, 2.0]]) == [(0, 0), (1, 1)]
    assert symmetric_links([[1.0, 3.0], [2.0, 1.0]]) == [(1, 0), (0, 1)]
    assert symmetric_links([[3.0, 2.0], [1.0, 1.0]]) == [(0, 0)]  # the second target depends on the first source too
    assert symmetric_links([[-1.0, 0.0], [-2.0, -3.0]]) == []  # nothing is lost


def test_agreement_counts_the_links_that_the_largest_weight_finds() -> None:
    cross = torch.zeros(1, 2, 2, 2)
    cross[0, 0] = torch.eye(2)
    cross[0, 1] = 1 - torch.eye(2)
    linked = [Linked([(0, 0), (1, 1)], cross)]
    assert (agreement(linked, 0, [0]), agreement(linked, 0, [1])) == (2, 0)


def test_links_do_not_depend_on_how_many_variants_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    whole = link(model, [5, 6, 7, 8], [4, 5, 6])
    monkeypatch.setattr("export.alignment.LARGEST_OUTPUT", 1)
    single = link(model, [5, 6, 7, 8], [4, 5, 6])
    assert whole.links == single.links
    assert torch.allclose(whole.cross, single.cross, atol=1e-6)
    assert whole.cross.shape == (2, 2, 3, 4)


def test_start_tokens_have_no_rows() -> None:
    assert link(make_model(), [5, 6], [4, 5, 6], start=[7, 8]).cross.shape == (2, 2, 3, 2)


def test_without_a_fitting_pair_nothing_is_chosen() -> None:
    assert choose_alignment(make_model(), [([5] * (LONGEST + 1), [4]), ([], [4]), ([5], [])]) == {}


def test_the_default_model_aligns_letters_and_sounds() -> None:
    trained = load_trained(DEFAULT)
    pairs = calibration_pairs(DEFAULT, trained)[:12]
    found = choose_alignment(trained.model, pairs)
    assert found["agreement"] > 0.7  # chance is about 1 in 8
    linked = [link(trained.model, *pair) for pair in pairs]
    every = sum(len(pair.links) for pair in linked)
    assert agreement(linked, found["layer"], found["heads"]) / every == pytest.approx(found["agreement"], abs=1e-4)
    sizes = trained.config
    for layer in range(sizes.decoder_layers):
        for head in range(sizes.heads):
            assert agreement(linked, layer, [head]) / every <= found["agreement"] + 1e-4


def test_an_export_writes_its_choice_and_a_wrong_type_is_refused(tmp_path: Path) -> None:
    out = export_unproven(write_run(tmp_path / "run"), tmp_path / "bundle", ("fp32",))
    chosen = read_bundle(out).alignment
    assert set(chosen) == {"layer", "heads", "method", "agreement"}
    edit_manifest(out, lambda manifest: manifest["alignment"].update(heads="all"))
    with pytest.raises(BundleError, match=r"alignment\.heads is 'all', not a list"):
        read_bundle(out)
    edit_manifest(out, lambda manifest: manifest.pop("alignment"))
    assert read_bundle(out).alignment == {}
