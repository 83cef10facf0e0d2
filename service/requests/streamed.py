"""Token by token, the text of an answer: that of one search, and that of a document's segments in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attendant.service.documents.document import Segment
from attendant.service.documents.joining import PlannedSegment, answer_of, written
from attendant.service.engine.tasks import Explained, Generated, Hypothesis, NewTokens, Outcome, TokenLogprobs
from attendant.service.requests.documents import Plan
from attendant.service.requests.served import ServedModel
from attendant.service.text.tokenizer import UNFINISHED

BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")  # SentencePiece's, for a byte of a character that it lacks

Json = dict[str, Any]


class StreamedText:
    """Token events whose texts, joined, are the text of the answer.

    A token that ends inside a character is held back until the next one. What a token adds to the text is found in the
    text of a window, which begins with the tokens that were released before it: it depends on no earlier ones.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._sent = 0  # tokens
        self._length = 0  # of the text that was sent
        self._window = 0  # the first token of the window
        self._seen = 0  # length of that part of the window's text that was sent
        self.top_logprobs: list[TokenLogprobs] = []  # of each token so far, where they were recorded

    def add(self, new: NewTokens) -> Iterator[Json]:
        self.top_logprobs += new.top_logprobs
        for index, logprob in zip(new.ids, new.logprobs, strict=True):
            self.ids.append(index)
            self._logprobs.append(logprob)
            text = self._decode(self._window)
            if not text.endswith(UNFINISHED):
                released = self._sent
                yield from self._release(text[self._seen :])
                self._length += len(text) - self._seen
                self._move_window(released, len(text))

    def _decode(self, first: int) -> str:
        return self._served.engine.target_tokenizer.decode(self.ids[first:])

    def _move_window(self, first: int, length: int) -> None:
        """Begin the window with a token that is released, unless tokens before that may change what follows.

        They may if all since are without a text, as the space at the beginning of a text is left out; and inside a run
        of bytes, which is one if all of it is valid. `length` is that of the present window's text.
        """
        text = "" if self._is_byte(first) else self._decode(first)
        self._window, self._seen = (first, len(text)) if text else (self._window, length)

    def _is_byte(self, place: int) -> bool:
        return BYTE_TOKEN.fullmatch(self._served.tokens[self.ids[place]]) is not None

    def finish(self, best: Hypothesis) -> Iterator[Json]:
        """The events of the answer that were not sent yet."""
        new = slice(len(self.ids), len(best.ids))
        yield from self.add(NewTokens(0, best.ids[new], best.logprobs[new], best.top_logprobs[new]))
        yield from self._release(self._decode(0)[self._length :])

    def _release(self, text: str) -> Iterator[Json]:
        """The events of the tokens that are held back, the last of which has all of this text."""
        last = len(self.ids) - 1
        for place in range(self._sent, len(self.ids)):
            token = self._served.tokens[self.ids[place]]
            piece = text if place == last else ""
            yield {"token": token, "text": piece, "logprob": self._logprobs[place], "index": place}
        self._sent = len(self.ids)


class StreamedDocument:
    """Events of a text's answer: of tokens, and of text that is of none. All their texts, joined, are the answer's.

    For each task in turn: `begin`, `add` as often as there are tokens, `finish`; at last `end`. The tokens of a segment
    with tags or pieces come with its end, since only then their places are known; its text is an event by itself.
    """

    def __init__(self, served: ServedModel, plan: Plan) -> None:
        self._served = served
        planned = plan.documents.get(0)
        self._parts: list[str | Segment] = [] if planned is None else list(planned.document.parts)
        self._planned = [] if planned is None else list(planned.segments)
        self._index = 0  # of the next token
        self._segment: PlannedSegment | None = None
        self._text = StreamedText(served)

    def begin(self) -> Iterator[Json]:
        self._text = StreamedText(self._served)
        if self._planned:
            self._segment = self._planned.pop(0)
            while isinstance(part := self._parts.pop(0), str):
                yield {"text": part}

    def add(self, new: NewTokens) -> Iterator[Json]:
        return self._numbered(self._text.add(new))

    def finish(self, outcome: Outcome) -> Iterator[Json]:
        result = outcome.found if isinstance(outcome, Explained) else outcome
        assert isinstance(result, Generated)
        best = result.hypotheses[0]
        marked = self._segment is not None and bool(self._segment.segment.nodes)
        for event in self._numbered(self._text.finish(best)):
            yield event | {"text": ""} if marked else event
        if self._segment is not None and marked:
            pairs: Sequence[tuple[int, int]] = outcome.pairs if isinstance(outcome, Explained) else ()
            text, _ = answer_of(self._segment, best.ids, pairs, self._served.engine.target_tokenizer)
            yield {"text": text}
        self._index += len(best.ids)

    def end(self) -> Iterator[Json]:
        for part in self._parts:
            yield {"text": str(part)}

    def _numbered(self, events: Iterator[Json]) -> Iterator[Json]:
        if self._segment is None:
            return events
        write = written(self._segment.segment)
        return (event | {"text": write(event["text"]), "index": self._index + event["index"]} for event in events)
