"""A model as planning sees it: a running engine, with what every request needs of it looked up once."""

from __future__ import annotations

from service.engine.interface import EngineInterface
from service.requests.defaults import usable_defaults


class ServedModel:
    """An engine, with what every request needs of it looked up once."""

    def __init__(self, engine: EngineInterface, name: str | None = None) -> None:
        """`name` is the model's name in requests; None: the bundle's own name."""
        self.engine = engine
        self.description = engine.description
        self.name = name or self.description.model
        tokenizer = engine.target_tokenizer
        self.tokens = [tokenizer.token(index) for index in range(tokenizer.size)]
        self.token_texts = [tokenizer.text(index) for index in range(tokenizer.size)]
        self.readable = self.tokens == self.token_texts
        self.end = self.description.special_ids["eos"]
        self.max_target_length = self.description.max_target_length
        self.languages = self.description.languages
        self.defaults = usable_defaults(self.description.generation)
        self.start_length = len(self.description.generation.get("target_prefix", ()))  # unless the language has its own
        self.forced_end = self.description.generation.get("forced_end") is True
