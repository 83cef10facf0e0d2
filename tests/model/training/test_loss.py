from __future__ import annotations

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from attendant.model.text.tokenizer import PAD
from attendant.model.training.loss import distilled_cross_entropy, smoothed_cross_entropy


def written_out(logits: torch.Tensor, target: torch.Tensor, smoothing: float) -> torch.Tensor:
    """-sum over classes of wanted probability times log-probability, over every target that is not padding."""
    total = torch.zeros(())
    classes = logits.shape[-1]
    for row, wanted in zip(logits.flatten(0, 1), target.flatten().tolist(), strict=True):
        if wanted != PAD:
            distribution = torch.full((classes,), smoothing / (classes - 1))
            distribution[wanted] = 1 - smoothing
            total -= distribution @ row.log_softmax(-1)
    return total


def test_smoothing_of_the_notes_wants_90_5_5_percent() -> None:
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    smoothed_cross_entropy(logits, tensor([[1]]), 0.1).backward()
    wanted = logits.softmax(-1) - logits.grad  # the gradient of a cross-entropy is softmax minus what is wanted
    assert_close(wanted[0, 0], tensor([0.05, 0.9, 0.05]))


def test_the_loss_is_its_formula_and_padding_costs_nothing() -> None:
    logits, target = torch.randn(3, 4, 7), tensor([[1, 2, 3, 4], [5, 6, PAD, PAD], [3, PAD, PAD, PAD]])
    for smoothing in (0.0, 0.1, 0.4):
        assert_close(smoothed_cross_entropy(logits, target, smoothing), written_out(logits, target, smoothing))


def test_without_smoothing_a_certain_answer_costs_nothing() -> None:
    logits = torch.full((1, 1, 5), -100.0)
    logits[0, 0, 2] = 100.0
    assert smoothed_cross_entropy(logits, tensor([[2]]), 0.0) == 0


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_distilled_loss_is_its_formula(weight: float) -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 5), tensor([[1, 4, 3], [2, 3, PAD]])
    tokens = torch.randn(2, 3, 5).topk(2).indices
    probabilities = tensor([[[0.9, 0.1], [0.5, 0.5], [1.0, 0.0]], [[0.7, 0.3], [0.6, 0.4], [0.0, 0.0]]])
    expected = 0.0
    for b, t in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
        logprobs = logits[b, t].log_softmax(-1)
        taught = sum(p * logprobs[token] for p, token in zip(probabilities[b, t], tokens[b, t], strict=True))
        expected -= (1 - weight) * logprobs[target[b, t]] + weight * taught
    assert_close(distilled_cross_entropy(logits, target, tokens, probabilities, weight, 0.0), expected)
