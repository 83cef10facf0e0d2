"""Kinds of models of Hugging Face's transformers, `model_type` in config.json: the format that imports one, or why not.

Standard library only: a model by name is refused before its weights are downloaded.
"""

from __future__ import annotations

FORMATS = {  # model_type: format of `attendant import`
    "marian": "marian",
    "m2m_100": "m2m",
    "bart": "bart",
    "mbart": "bart",
    "blenderbot": "blenderbot",
    "pegasus": "pegasus",
    "t5": "t5",
    "mt5": "t5",
}
# Kinds that are near one of those, and what the model class or the tokenizers have not.
LACKING = {
    "umt5": "each of its layers has a table of relative positions of its own",
    "longt5": "its encoder attends locally",
    "switch_transformers": "mixtures of experts have no place",
    "nllb-moe": "mixtures of experts have no place",
    "pegasus_x": "its encoder attends in blocks, with global tokens",
    "bigbird_pegasus": "its encoder attends sparsely",
    "led": "its encoder attends locally",
    "prophetnet": "it predicts several tokens at once",
    "blenderbot-small": "its tokenizer writes texts in lower case and cuts words by rules of its own",
    "fsmt": "its texts are cut by Moses' rules; fairseq's own checkpoint of it can be imported",
    "whisper": "it reads sound",
}


def why_not(kind: object) -> str:
    """What a model of this kind has that cannot be imported; empty where nothing is known of it."""
    return LACKING.get(kind, "") if isinstance(kind, str) else ""
