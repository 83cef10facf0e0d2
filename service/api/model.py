"""A bundle's model in this process, for threads and for asyncio."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

from attendant.service.api.calls import (
    GenerateOptions,
    NextTokenOptions,
    TextOptions,
    Texts,
    generate_call,
    next_token_call,
    score_call,
)
from attendant.service.api.results import NextToken, Output, Score
from attendant.service.api.running import Running
from attendant.service.settings import Settings

if TYPE_CHECKING:
    from attendant.service.api.awaiting import TokenStream


class Model:
    """A bundle, loaded, certified and ready. Thread-safe: calls from several threads share batches."""

    def __init__(
        self,
        bundle: str | Path | None = None,
        *,
        provider: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        lanes: int = 0,
        max_rows: int = 0,
    ) -> None:
        """`bundle` is a directory, or None for the embedded model; the rest is as in `attendant serve --help`.

        Raises BundleError, StartError or SettingsError if it cannot be used.
        """
        from attendant.service.commands.generate import load_engine
        from attendant.service.requests.served import ServedModel

        settings = Settings(
            bundle=None if bundle is None else Path(bundle),
            provider=provider,
            precision=precision,
            threads=threads,
            lanes=lanes,
            max_rows=max_rows,
        )
        self._served = ServedModel(load_engine(settings))
        self._running = Running(self._served)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine's threads; calls that are still being decoded fail with NotReadyError."""
        self._running.close()

    @property
    def name(self) -> str:
        return self._served.name

    @property
    def precision(self) -> str:
        return self._served.description.precision

    @property
    def provider(self) -> str:
        return self._served.description.provider

    @property
    def max_source_length(self) -> int:
        """Tokens, without the end token."""
        return self._served.description.max_source_length

    @property
    def max_target_length(self) -> int:
        """Tokens, with the end token."""
        return self._served.max_target_length

    @property
    def source_languages(self) -> list[str]:
        """Codes that `source_language` takes; empty if the model has no choice of it."""
        return list(self._served.languages.source)

    @property
    def target_languages(self) -> list[str]:
        """Codes that `target_language` takes; empty if the model has no choice of it."""
        return list(self._served.languages.target)

    @overload
    def generate(self, inputs: str, **options: Unpack[GenerateOptions]) -> Output: ...
    @overload
    def generate(self, inputs: list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]) -> list[Output]: ...
    def generate(self, inputs: Texts, **options: Unpack[GenerateOptions]) -> Output | list[Output]:
        """An Output for one text, or a list of them in order.

        A text of a list that cannot be answered has an Output with an `error`, unless none can or `all_or_nothing` is
        set: then that is raised.
        """
        self._running.check()
        outputs = self._running.run(generate_call(self._served, inputs, options))
        return outputs[0] if isinstance(inputs, str) else outputs

    def score(self, source: str, target: str, **options: Unpack[TextOptions]) -> Score:
        """The log-probability of a given target, token by token."""
        self._running.check()
        return self._running.run(score_call(self._served, source, target, options))

    def next_token(self, source: str, prefix: str = "", **options: Unpack[NextTokenOptions]) -> NextToken:
        """The softmax over the next token after the beginning of a target."""
        self._running.check()
        return self._running.run(next_token_call(self._served, source, prefix, options))

    # The same for asyncio. Any number of calls may wait in one event loop; cancelling one cancels its decoding.

    @overload
    async def generate_async(self, inputs: str, **options: Unpack[GenerateOptions]) -> Output: ...
    @overload
    async def generate_async(
        self, inputs: list[str] | tuple[str, ...], **options: Unpack[GenerateOptions]
    ) -> list[Output]: ...
    async def generate_async(self, inputs: Texts, **options: Unpack[GenerateOptions]) -> Output | list[Output]:
        """As `generate`."""
        from attendant.service.api.awaiting import run_async

        self._running.check()
        plan = partial(generate_call, self._served, inputs, options)
        outputs = await run_async(self._running, plan, in_thread=_is_long(inputs))
        return outputs[0] if isinstance(inputs, str) else outputs

    async def score_async(self, source: str, target: str, **options: Unpack[TextOptions]) -> Score:
        """As `score`."""
        from attendant.service.api.awaiting import run_async

        self._running.check()
        plan = partial(score_call, self._served, source, target, options)
        return await run_async(self._running, plan, in_thread=_is_long(source) or _is_long(target))

    async def next_token_async(self, source: str, prefix: str = "", **options: Unpack[NextTokenOptions]) -> NextToken:
        """As `next_token`."""
        from attendant.service.api.awaiting import run_async

        self._running.check()
        plan = partial(next_token_call, self._served, source, prefix, options)
        return await run_async(self._running, plan, in_thread=_is_long(source) or _is_long(prefix))

    def stream_async(self, text: str, **options: Unpack[GenerateOptions]) -> TokenStream:
        """`async for token in model.stream_async(text)`: the tokens of the answer as they become certain.

        Under beam search that is once every live hypothesis agrees on one. A loop that is left early cancels the rest.
        At the end the stream's `output` is the whole answer.
        """
        from attendant.service.api.awaiting import TokenStream

        self._running.check()
        return TokenStream(self._running, partial(generate_call, self._served, text, options, stream=True))


def _is_long(texts: Texts) -> bool:
    """Whether tokenizing would hold up an event loop."""
    from attendant.service.text.tokenizer import LONG_TEXT

    return not isinstance(texts, str) or len(texts) > LONG_TEXT
