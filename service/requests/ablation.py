"""What a request switches off, as the engine takes it."""

from __future__ import annotations

from attendant.export.bundle import Sizes
from attendant.service.engine.tasks import Ablation
from attendant.service.requests.explain_schemas import AblateRequest
from attendant.service.requests.planning import Problem

STACKS = {
    "encoder": ("encoder", "encoder_feed_forward"),
    "decoder": ("decoder", "cross", "decoder_feed_forward"),
}


def ablation_of(request: AblateRequest) -> Ablation:
    """A layer is off where all its sub-layers are."""
    layers = [(kind, each.layer) for each in request.layers for kind in STACKS[each.stack]]
    return Ablation(
        heads=tuple((each.kind, each.layer, each.head) for each in request.heads),
        sublayers=tuple(dict.fromkeys([*((each.kind, each.layer) for each in request.sublayers), *layers])),
        residuals=tuple((each.kind, each.layer) for each in request.residuals),
        positions=tuple(request.positions),
    )


def problems_of(request: AblateRequest, sizes: Sizes) -> list[Problem]:
    """Layers and heads that the model has not."""
    named = [(each.kind, each.layer) for each in (*request.sublayers, *request.residuals)]
    named += [(each.kind, each.layer) for each in request.heads]
    named += [(each.stack, each.layer) for each in request.layers]
    problems: list[Problem] = []
    for kind, layer in named:
        layers = sizes.encoder_layers if kind.startswith("encoder") else sizes.decoder_layers
        if layer >= layers:
            problems.append(("ablate", f"ablate takes layers from 0 to {layers - 1} of {kind}, not {layer}."))
    for each in request.heads:
        if each.head >= sizes.heads:
            problems.append(
                ("ablate", f"ablate takes heads from 0 to {sizes.heads - 1} with this model, not {each.head}.")
            )
    return problems[:1]
