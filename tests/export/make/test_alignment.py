"""The alignment of a bundle: what a target depends on, without gold, and heads that point at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from attendant.export.bundle import BundleError, read_bundle
from attendant.export.make.alignment import (
    LONGEST,
    Reference,
    agreement,
    choose_alignment,
    normalise,
    reference,
    reference_pairs,
)
from attendant.export.make.samples import read_samples
from attendant.model.checkpoint import TrainedModel, load_trained
from attendant.model.transformer import AttentionWeights, Transformer
from tests.support.exporting import edit_manifest, export_unproven, write_run
from tests.support.small_models import make_model

DEFAULT = Path(__file__).parents[3] / "model" / "default"
BUNDLE = DEFAULT.parent.parent / "service" / "default_bundle"
SUBSTITUTES = [[7], [8], [5], [6]]
TAG = 4

# Letters and their sounds as a person would divide them; letters before a dot have none.
WORDS = """
kn=N ow=AA1 l=L e=AH0 dge=JH
a=AH0 tt=T e=EH1 n=N d=D a=AH0 n=N t=T
th=TH r=R ough=UW1
wr=R i=AY1 t=T er=ER0
ph=F o=OW1 n=N e.
s=S ch=K oo=UW1 l=L
s=S t=T r=R e=EH1 ng=NG th=TH
e=EH1 l=L e=AH0 ph=F a=AH0 n=N t=T
f=F o=AO1 r=R e=AH0 s=S t=T
n=N eigh=EY1 b=B or=ER0
k=K i=IH1 tch=CH e=AH0 n=N
m=M u=Y,UW1 s=Z i=IH0 c=K
k=K i=IH1 ng=NG d=D o=AH0 m=M
h=HH u=AH1 n=N d=D r=R e=AH0 d=D
b=B r=R i=IH1 dge=JH
p=P i=IH1 c=K t=CH ure=ER0
i=IH2 n=N t=T er=ER0 n=N a=AE1 tion=SH,AH0,N a=AH0 l=L
l=L a=AE1 n=NG gu=G,W a=AH0 ge=JH
sc=S i=AY1 e=AH0 n=N ce=S
d=D augh=AO1 t=T er=ER0
"""


class Reverser:
    """Stands in for a model whose alignment is known: it gives the source in reverse, each token by one place.

    A `tagged` one does so only where the first source token is TAG. `heads` are the places that each head looks at,
    given the target's place and the last source token's.
    """

    def __init__(self, *heads: Callable[[int, int], int], tagged: bool = False) -> None:
        self.config = SimpleNamespace(max_length=64, target_vocab=20, decoder_layers=1, heads=len(heads))
        self._heads, self._tagged = heads, tagged

    def __call__(self, source: Tensor, target: Tensor, weights: AttentionWeights) -> Tensor:
        rows, last = range(len(source)), source.shape[1] - 2  # without the end token
        logits = torch.zeros(len(source), target.shape[1], self.config.target_vocab)
        cross = torch.zeros(len(source), len(self._heads), target.shape[1], source.shape[1])
        for t in range(target.shape[1]):
            reads = (source[:, 0] == TAG) | (not self._tagged)
            logits[rows, t, source[:, last - t]] = torch.where(reads, 4.0, -4.0)
            for head, look in enumerate(self._heads):
                cross[:, head, t, min(look(t, last), last)] = 1
        weights.cross.append(cross)
        return logits


def true(t: int, last: int) -> int:
    return last - t


def off_by_one(t: int, last: int) -> int:
    return last - t + 1


def first(t: int, last: int) -> int:
    return 0


def choose(model: Reverser) -> dict[str, Any]:
    sources = [TAG, 5, 6, 7], [TAG, 8, 9, 10], [TAG, 6, 8, 5], [TAG, 9, 7, 10]
    return choose_alignment(cast(Transformer, model), [(source, source[::-1]) for source in sources])


def test_the_head_that_looks_where_the_target_comes_from_is_chosen_also_against_the_order() -> None:
    assert choose(Reverser(off_by_one, true, first)) == {
        "layer": 0, "heads": [1], "method": "argmax", "agreement": 1.0,
    }  # fmt: skip


def test_a_source_token_on_which_every_target_depends_explains_none() -> None:
    assert choose(Reverser(first, true, tagged=True))["heads"] == [1]


def test_shares_are_of_a_target_token_and_then_of_a_source_token() -> None:
    assert torch.allclose(normalise(torch.tensor([[3.0, 0.0], [1.0, 2.0]])), torch.tensor([[1.0, 0.0], [0.2, 0.8]]))
    assert normalise(torch.tensor([[-1.0, 0.0]])).tolist() == [[0.0, 0.0]]  # nothing is lost


def test_agreement_is_the_dependence_that_the_largest_weight_finds() -> None:
    cross = torch.zeros(1, 2, 2, 2)
    cross[0, 0] = torch.eye(2)
    cross[0, 1] = 1 - torch.eye(2)
    references = [Reference(torch.tensor([[1.0, 0.2], [0.0, 0.8]]), cross)]
    assert agreement(references, 0, [0]) == 1
    assert agreement(references, 0, [1]) == pytest.approx(0.2 / 1.8, abs=1e-4)


def test_a_reference_does_not_depend_on_how_many_variants_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    whole = reference(model, [5, 6, 7, 8], [4, 5, 6], SUBSTITUTES)
    monkeypatch.setattr("attendant.export.make.alignment.LARGEST_OUTPUT", 1)
    single = reference(model, [5, 6, 7, 8], [4, 5, 6], SUBSTITUTES)
    assert torch.allclose(whole.dependence, single.dependence, atol=1e-4)
    assert torch.allclose(whole.cross, single.cross, atol=1e-6)
    assert (whole.dependence.shape, whole.cross.shape) == ((4, 3), (2, 2, 3, 4))


def test_start_tokens_have_no_rows() -> None:
    found = reference(make_model(), [5, 6], [4, 5, 6], [[7], [7]], start=[7, 8])
    assert (found.dependence.shape, found.cross.shape) == ((2, 3), (2, 2, 3, 2))


def test_without_a_fitting_pair_nothing_is_chosen() -> None:
    assert choose_alignment(make_model(), [([5] * (LONGEST + 1), [4]), ([], [4]), ([5], [])]) == {}


def test_a_single_source_token_in_all_pairs_has_a_substitute() -> None:
    assert reference_pairs(make_model(), [([5, 5], [4])])[0].dependence.shape == (2, 1)


@pytest.fixture(scope="module")
def default() -> TrainedModel:
    return load_trained(DEFAULT)


def divided(line: str) -> tuple[str, list[str], list[range]]:
    """A word, its phones, and the letters of each phone."""
    word, phones, letters = "", [], []
    for part in line.split():
        text, _, sounds = part.partition("=")
        text = text.removesuffix(".")
        for sound in filter(None, sounds.split(",")):
            phones.append(sound)
            letters.append(range(len(word), len(word) + len(text)))
        word += text
    return word, phones, letters


def errors(trained: TrainedModel, layer: int, heads: list[int]) -> list[str]:
    """Phones of WORDS that the heads align with another's letters."""
    wrong = []
    for word, phones, letters in map(divided, WORDS.strip().splitlines()):
        source, target = trained.source.encode(word), trained.target.encode(" ".join(phones))
        weights = reference(trained.model, source, target, [[5]] * len(source)).cross[layer, heads].mean(0)
        found = zip(phones, letters, weights.argmax(-1).tolist(), strict=True)
        wrong += [f"{word} {phone}" for phone, own, place in found if place not in own]
    return wrong


def test_the_embedded_model_aligns_letters_and_sounds_as_a_person_would(default: TrainedModel) -> None:
    found = choose_alignment(default.model, read_samples(DEFAULT, default).pairs)
    assert read_bundle(BUNDLE).alignment == found | {"agreement": pytest.approx(found["agreement"], abs=0.01)}
    every = sum(len(divided(line)[1]) for line in WORDS.strip().splitlines())
    assert len(errors(default, found["layer"], found["heads"])) <= 0.05 * every


def test_the_choice_is_the_best_of_all_heads_and_always_the_same(default: TrainedModel) -> None:
    pairs = read_samples(DEFAULT, default).pairs[:12]
    found = choose_alignment(default.model, pairs)
    references = reference_pairs(default.model, pairs)
    assert agreement(references, found["layer"], found["heads"]) == found["agreement"]
    for layer in range(default.config.decoder_layers):
        for head in range(default.config.heads):
            assert agreement(references, layer, [head]) <= found["agreement"]


def test_an_export_writes_its_choice_and_a_wrong_type_is_refused(tmp_path: Path) -> None:
    out = export_unproven(write_run(tmp_path / "run"), tmp_path / "bundle", ("fp32",))
    chosen = read_bundle(out).alignment
    assert set(chosen) == {"layer", "heads", "method", "agreement"}
    edit_manifest(out, lambda manifest: manifest["alignment"].update(heads="all"))
    with pytest.raises(BundleError, match=r"alignment\.heads is 'all', not a list"):
        read_bundle(out)
    edit_manifest(out, lambda manifest: manifest.pop("alignment"))
    assert read_bundle(out).alignment == {}
