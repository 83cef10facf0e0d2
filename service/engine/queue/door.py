"""Who may wait: the queue is bounded in texts and in tokens, and neither many small requests nor a few large ones can
keep the other kind out.

Small and large requests are counted apart, each within the whole bound. A small one must fit into what is left. A large
one, which seldom would, is let in as long as those before it leave anything: it may be larger than the bound itself.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGE = 1 / 8  # of the texts or of the tokens; a request that needs more is large


@dataclass(slots=True)
class Line:
    texts: int = 0
    tokens: int = 0


class Door:
    def __init__(self, max_texts: int, max_tokens: int) -> None:
        self.max_texts, self.max_tokens = max_texts, max_tokens
        self._small, self._large = Line(), Line()

    def is_large(self, texts: int, tokens: int) -> bool:
        return texts > LARGE * self.max_texts or tokens > LARGE * self.max_tokens

    def has_room(self, texts: int, tokens: int) -> bool:
        if self.is_large(texts, tokens):
            return self._large.texts < self.max_texts and self._large.tokens < self.max_tokens
        return self._small.texts + texts <= self.max_texts and self._small.tokens + tokens <= self.max_tokens

    def line(self, large: bool) -> Line:
        return self._large if large else self._small
