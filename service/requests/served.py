"""A model as planning sees it: a running engine, with what every request needs of it looked up once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from attendant.service.engine.interface import EngineInterface
from attendant.service.requests.defaults import usable_defaults
from attendant.service.text.phrases import TokenTexts


class ServedModel:
    """Never changed, but for what is kept to be read again: a reload makes another one."""

    def __init__(
        self,
        engine: EngineInterface,
        name: str | None = None,
        allow_unknown: str = "auto",
        on_unknown: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` is the model's name in requests; None: the bundle's own name.

        `allow_unknown` is the setting; `on_unknown` is called for each source that is read with unknown tokens.
        """
        self.engine = engine
        self.description = engine.description
        self.name = name or self.description.model
        tokenizer = engine.target_tokenizer
        self.tokens = tokenizer.tokens()
        self.token_texts = tokenizer.texts(self.tokens)
        self.readable = self.tokens == self.token_texts
        self.last_phrases: tuple[object, object] | None = None  # see read_phrases in constraints.py
        self.end = self.description.special_ids["eos"]
        self.max_target_length = self.description.max_target_length
        self.languages = self.description.languages
        self.defaults = usable_defaults(self.description.generation)
        if allow_unknown != "auto":
            self.defaults["allow_unknown"] = allow_unknown == "true"
        self.allow_unknown = self.defaults.get("allow_unknown") is True
        self.on_unknown = on_unknown
        self.start_length = len(self.description.generation.get("target_prefix", ()))  # unless the language has its own
        self.forced_end = self.description.generation.get("forced_end") is True

    @cached_property
    def phrase_tokens(self) -> TokenTexts:
        """What phrases are cut into."""
        return TokenTexts(self.token_texts, self.description.special_ids.values())
