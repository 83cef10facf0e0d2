"""HTML through any model: whatever it answers and however that is aligned, the markup comes through, well-formed."""

from __future__ import annotations

import html
import itertools
import random
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.service.documents.building import Format, Reader, build_document
from attendant.service.documents.document import Document, Segment
from attendant.service.documents.placing import place
from attendant.service.documents.protection import Protection

WORDS = re.compile(r"\w+|\S")
URL = "http://q.io/x"
UNTRANSLATED = (
    "<code>x_1()</code>",
    "<code>a &nosuch; b</code>",
    '<i translate="no">no <b>no</b></i>',
    "<p class='notranslate'>no</p>",
    "<script>if (a<b) '</p>'</script>",
    "<pre>a  b</pre>",
)
COMMENT = "<!-- <b> c -->"
VOID = ("img", "br", "wbr")


def document(source: str, limit: int, knows: str = "") -> Document:
    reader = Reader(
        limit=limit,
        spans=lambda text: [found.span() for found in WORDS.finditer(text)],
        knows=lambda text: text in knows,
    )
    protection = Protection(("placeholders", "urls"), None)
    form = Format(split="sentences", html=True, protection=protection, language="en", most=1000)
    return build_document(source, form, reader, "inputs")


def answered(found: Document, seed: int, alphabet: str = "ab<>&\"' .") -> tuple[str, list[str]]:
    """The document with answers of any text, in any tokens, aligned in any way; and these answers."""
    draw, answers, parts = random.Random(seed), [], []
    for part in found.parts:
        if not isinstance(part, Segment):
            parts.append(part)
            continue
        answers.append(text := "".join(draw.choices(alphabet, k=draw.randrange(12))))
        cuts = sorted({0, len(text), *(draw.randrange(len(text) + 1) for _ in range(draw.randrange(6)))})
        spans = list(itertools.pairwise(cuts))
        aligned = [(draw.randrange(len(part.text)), draw.randrange(len(spans))) for _ in range(6) if spans]
        parts.append(place(part, text, spans, aligned[: draw.randrange(7)])[0])
    return "".join(parts), answers


def echoed(found: Document) -> str:
    """The document whose every segment is answered by itself, aligned word by word."""
    parts = []
    for part in found.parts:
        if isinstance(part, Segment):
            spans = [word.span() for word in WORDS.finditer(part.text)]
            aligned = [(start, token) for token, (start, _) in enumerate(spans)]
            parts.append(place(part, part.text, spans, aligned)[0])
        else:
            parts.append(part)
    return "".join(parts)


class Markup(HTMLParser):
    """What a parser sees of markup, and that every element is closed where it may be."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[f"{tag} {attrs}"] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.seen[f"<!--{data}-->"] += 1


WORD = st.sampled_from(["one", "two.", "Three!", "&amp;", "&lt;b", "&nosuch;", ",", "{n}", URL, "(" + URL, "\n", ""])
TEXT = st.lists(WORD, max_size=5).map(" ".join)
LEAF = TEXT | WORD | st.sampled_from([*UNTRANSLATED, COMMENT, "<img src='a>b'>", "<wbr>", "<br>"])


def markup(*between: str) -> st.SearchStrategy[str]:
    return st.recursive(
        LEAF,
        lambda inner: st.builds(
            lambda tag, parts, between: f"<{tag} id=q>{between.join(parts)}</{tag}>",
            st.sampled_from(["b", "i", "a", "span", "p", "div", "h1"]),
            st.lists(inner, max_size=4),
            st.sampled_from(between),
        ),
        max_leaves=14,
    )


HTML = markup("", " ")
LIMITS = st.integers(3, 50)
SEEDS = st.integers(0, 2**32)


@given(source=HTML, limit=LIMITS, seed=SEEDS)
def test_well_formed_in_is_well_formed_out_with_everything_once(source: str, limit: int, seed: int) -> None:
    found, _ = answered(document(source, limit), seed)
    assert Markup(found).seen == Markup(source).seen
    for piece in (*UNTRANSLATED, URL, COMMENT, "{n}", "&nosuch;"):
        assert found.count(piece) == source.count(piece), (piece, found)


@given(source=HTML, limit=LIMITS, seed=SEEDS)
def test_all_that_a_model_answers_is_there_as_text(source: str, limit: int, seed: int) -> None:
    """Nothing of this source is read but words, so no answer is replaced by a piece."""
    found, answers = answered(document(source, limit), seed, "xyz<&")
    for piece in (*UNTRANSLATED, COMMENT):
        found = found.replace(piece, "")
    left = re.sub(r"<[^>]*>", "", found.replace("<img src='a>b'>", ""))
    written = re.sub("[^xyz<&]", "", re.sub(r"&amp;|&lt;b?|http://q.io/x|&nosuch;", html_of, left))
    assert [c for c in written if c in "xyz"] == [c for text in answers for c in text if c in "xyz"]


def html_of(found: re.Match[str]) -> str:
    return "" if found[0] == URL else html.unescape(found[0])


@given(source=markup(" "), limit=LIMITS, known=st.sampled_from(["", "x_1(){n}"]))
def test_a_model_that_echoes_gives_the_source_back(source: str, limit: int, known: str) -> None:
    """Where no word goes on behind a tag; but for white space."""
    assert plain(echoed(document(source, limit, known))) == plain(source)


def plain(source: str) -> str:
    return re.sub(r"\s+", "", source)


@given(source=HTML | st.text(max_size=60), limit=LIMITS)
def test_segments_and_what_is_between_them_are_the_source(source: str, limit: int) -> None:
    found = document(source, limit)
    assert "".join(part if isinstance(part, str) else source[part.start : part.stop] for part in found.parts) == source
    assert all(segment.text.strip() == segment.text != "" for segment in found.segments)


@pytest.mark.parametrize(
    "source",
    [
        "<p><a>Tea. Tea.</a> <i><code>x_1()</code></i> <b>one two</b></p>",
        f"<p><a>Tea. Tea.</a> <i>{URL}</i> <b>one two</b></p>",
        f"one <b>{URL}</b> and",
        f"one<b> {URL}</b> and",
        f"<i>{URL}</i>and",
        f"one <b>{URL}</b> <i>two</i> three",
        f"see {URL}<wbr>/b here",
        f"see {URL}?a&nosuch;b=1 here",
    ],
)
def test_pieces_that_are_not_read_stay_beside_their_tags(source: str) -> None:
    assert echoed(document(source, 50)) == source


def test_an_address_that_crosses_a_tag_ends_there() -> None:
    found = document(f"see <i>{URL}</i>and more", 50)
    assert [segment.text for segment in found.segments] == ["see and more"]
