"""A bundle of a model of bytes that has learnt nothing, with room for 512 tokens: it reads and writes any script."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from attendant.model import checkpoint
from attendant.model.text.tokenizer import learn
from tests.support.exporting import edit_manifest, export_unproven
from tests.support.small_models import make_model

RIGHT_TO_LEFT = "مرحبا بالعالم"
LINES = [RIGHT_TO_LEFT, "שלום עולם", "hello world"] * 2
TOKENIZER = learn("bpe:280", LINES)
LANGUAGES = {
    "source_prefix": {"en": [10], "de": [11], "ar": [12]},
    "target_prefix": {"en": [10], "de": [11], "ar": [12]},
    "target_language": "de",
}


def byte_bundle(directory: Path, languages: dict[str, Any] | None = None) -> Path:
    """Exported into the directory; with languages it translates between them, into short texts."""
    run = directory / "run"
    run.mkdir()
    model = make_model(source_vocab=TOKENIZER.size, target_vocab=TOKENIZER.size, max_length=512)
    checkpoint.write_json({"model": dataclasses.asdict(model.config)}, run / checkpoint.CONFIG)
    checkpoint.save_weights(checkpoint.weights_of(model), run / checkpoint.MODEL)
    for name in (checkpoint.SOURCE_TOKENIZER, checkpoint.TARGET_TOKENIZER):
        TOKENIZER.save(run / name)
    pairs = [f"{line} {i}\t{line}\n" for i, line in enumerate(LINES)]
    (run / checkpoint.SAMPLES).write_text("".join(pairs), encoding="utf-8")
    bundle = export_unproven(run, directory / "bundle", ("fp32",))
    if languages is not None:
        edit_manifest(bundle, lambda manifest: manifest.update(languages=languages, generation={"max_length": 24}))
    return bundle
