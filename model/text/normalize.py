"""What is done to a source before it is tokenized: normalizers of the `tokenizers` library.

They are saved in the source tokenizer's file, so training, evaluation and serving all apply the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import normalizers

from attendant.model.errors import ConfigError

# In order of application: NFC comes after lower-casing, which may leave a character decomposed.
STEPS = {"lower": normalizers.Lowercase, "nfc": normalizers.NFC, "strip": normalizers.Strip}


def parse(text: str | None) -> tuple[str, ...]:
    """'nfc,lower' -> ('lower', 'nfc'), in the order in which they are applied."""
    named = [name.strip() for name in text.split(",")] if text else []
    unknown = [name for name in named if name not in STEPS]
    if unknown:
        raise ConfigError(f"--normalize takes a list of {', '.join(STEPS)}, not {unknown[0]!r}.")
    return tuple(name for name in STEPS if name in named)


def build(names: Sequence[str]) -> normalizers.Normalizer:
    return normalizers.Sequence([STEPS[name]() for name in STEPS if name in names])
