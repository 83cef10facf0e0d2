"""What a manifest says beside sizes and files: its name, the checkpoint's digest, the alignment, what was measured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from attendant.export.bundle import Bundle, Variant

LONGEST_NAME = 200
SHARES = re.compile(r"differing_\w+|(torch_)?sequence_error_rate")


def check_manifest(bundle: Bundle) -> Iterator[str]:
    """Values that no export writes; neither torch nor the checkpoint is needed to see it."""
    name = bundle.name
    if not name or len(name) > LONGEST_NAME or name != name.strip() or not name.isprintable():
        yield f"name: {name[:60]!r} is no name of a model: 1 to {LONGEST_NAME} printable characters"
    digest = bundle.produced_by.get("checkpoint_sha256", "")
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        yield f"checkpoint_sha256: {digest[:80]!r} is no SHA-256"
    yield from _check_alignment(bundle)


def _check_alignment(bundle: Bundle) -> Iterator[str]:
    found, sizes = bundle.alignment, bundle.sizes
    if not found:
        return
    heads = found["heads"]
    if not 0 <= found["layer"] < sizes.decoder_layers:
        yield f"alignment: layer {found['layer']} of {sizes.decoder_layers} decoder layers"
    if not heads or len(set(heads)) != len(heads) or not all(0 <= head < sizes.heads for head in heads):
        yield f"alignment: heads {heads[:20]} of {sizes.heads}; each must be there, and once"
    if not 0 <= found["agreement"] <= 1:
        yield f"alignment: an agreement of {found['agreement']:g}, which is not from 0 to 1"


def check_measured_values(variant: Variant) -> Iterator[str]:
    """Shares of up to 100 %, a drift within the variant's own tolerance, and an input that they were measured on."""
    for name, value in variant.measured.items():
        if not math.isfinite(value) or value < 0 or (SHARES.fullmatch(name) and value > 100):
            yield f"measured: {name[:60]} is {value:g}"
    if variant.measured and not variant.measured.get("held_out_inputs", 0) >= 1:
        yield "measured: there is no held-out input that it was measured on"
    if variant.measured.get("drift", 0.0) > variant.tolerance:
        yield f"measured: a drift of {variant.measured['drift']:g}, over the tolerance of {variant.tolerance:g}"
