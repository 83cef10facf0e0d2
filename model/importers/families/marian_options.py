"""Marian's options as ours, and what of them does not fit."""

from __future__ import annotations

from attendant.model.config import ModelConfig
from attendant.model.importers.problems import MOST_LAYERS, Settings

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "silu"}
UNSUPPORTED = {
    "transformer-no-projection": "attention without an output projection is not supported",
    "transformer-tied-layers": "layers that share weights are not supported",
    "transformer-pool": "pooling in place of cross-attention is not supported",
    "transformer-no-bias": "layers without biases are not supported",
    "transformer-no-affine": "norms without scale and bias are not supported",
    "transformer-disable-position-embeddings": "a model without positions is not supported",
    "right-left": "it writes from right to left, which is not supported",
    "lemma-dim-emb": "factored vocabularies are not supported",
    "ulr": "universal language representations are not supported",
}
# What a decoder has in place of self-attention, by the value of transformer-decoder-autoreg: refused.
AUTOREGRESSION = {
    "average-attention": "its decoder has average attention (AAN) and no self-attention",
    "rnn": "its decoder has recurrent cells ({cell}) and no self-attention",
}
NORMS = {("", "an"): "post", ("n", "a"): "pre"}  # (transformer-preprocess, -postprocess), d for dropout left out


def read_options(s: Settings, learned_positions: bool) -> tuple[ModelConfig, dict[str, str]]:
    """Our options without vocabularies and positions; 'n' for a norm of the embeddings (emb) or after stacks (top)."""
    _refuse(s)
    d_ff = s.size("transformer-dim-ffn")
    other = s.values.get("transformer-decoder-dim-ffn") or d_ff
    if other != d_ff:
        s.problems.add(f"{s.name}: transformer-decoder-dim-ffn is {other!r:.40}, and transformer-dim-ffn {d_ff}")
    norm, norms = _norm(s), {name: _single_norm(s, f"transformer-postprocess-{name}") for name in ("emb", "top")}
    if norm == "pre" and norms["top"] != "n":
        s.problems.add("it is pre-norm without a norm after each stack (transformer-postprocess-top n)")
    config = ModelConfig(
        d_model=s.size("dim-emb"),
        d_ff=d_ff,
        heads=s.size("transformer-heads"),
        encoder_layers=s.size("enc-depth", most=MOST_LAYERS),
        decoder_layers=s.size("dec-depth", most=MOST_LAYERS),
        norm=norm,
        final_norm=norms["top"] == "n" and norm == "post",
        activation=s.choice("transformer-ffn-activation", ACTIVATIONS, "swish"),
        scale_embeddings=not learned_positions,
        embedding_norm=norms["emb"] == "n",
        dropout=0.0,
        attention_dropout=0.0,
        ff_dropout=0.0,
    )
    return config, norms


def _refuse(s: Settings) -> None:
    kind = s.values.get("type")
    if kind != "transformer":
        s.problems.refuse(f"its type is {kind!r:.40}; only transformer can be imported, and no recurrent network")
    way = s.values.get("transformer-decoder-autoreg", "self-attention")
    if way != "self-attention":
        cell = str(s.values.get("dec-cell", "unknown")).upper()
        reason = AUTOREGRESSION.get(str(way), f"its decoder has {way!r:.40} and no self-attention")
        s.problems.add(f"{reason.format(cell=cell)}, which is not supported")
    for name, why in UNSUPPORTED.items():
        s.refuse_if(name, why)
    mask = s.values.get("transformer-attention-mask") or "default"
    if mask != "default":
        s.problems.add(f"{s.name}: transformer-attention-mask is {mask!r:.40}, which is not supported")
    for name in ("transformer-ffn-depth", "transformer-decoder-ffn-depth"):
        if (s.values.get(name) or 2) != 2:
            s.problems.add(f"{s.name}: {name} is {s.values[name]!r:.40}; feed-forwards of 2 layers are supported")


def _norm(s: Settings) -> str:
    before, after = (str(s.values.get(f"transformer-{name}") or "") for name in ("preprocess", "postprocess"))
    norm = NORMS.get((before.replace("d", ""), after.replace("d", "")))
    if norm is None:
        s.problems.add(
            f"its sub-layers are preprocessed by {before!r:.20} and postprocessed by {after!r:.20}; "
            "'' and 'dan' (post-norm) or 'n' and 'da' (pre-norm) are supported"
        )
    return norm or "post"


def _single_norm(s: Settings, name: str) -> str:
    steps = str(s.values.get(name) or "").replace("d", "")
    if steps not in ("", "n"):
        s.problems.add(f"{s.name}: {name} is {steps!r:.20}; '' and 'n' are supported")
    return steps
