"""Documents: segments and what is between them are the source; markup and pieces come through, wherever they land."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.service.documents.building import Format, Reader, build_document
from attendant.service.documents.document import Document, Segment
from attendant.service.documents.markup import scan
from attendant.service.documents.placing import place
from attendant.service.documents.protection import Protection
from attendant.service.errors import InvalidFieldError

WORDS = re.compile(r"\w+|\S")


def reader(limit: int = 50) -> Reader:
    return Reader(
        limit=limit,
        spans=lambda text: [found.span() for found in WORDS.finditer(text)],
        knows=lambda text: "http" not in text,
    )


def document(
    source: str,
    split: str = "sentences",
    html: bool = False,
    kinds: tuple[str, ...] = ("placeholders", "urls", "emails"),
    pattern: str | None = None,
    limit: int = 50,
    most: int = 1000,
) -> Document:
    form = Format(split=split, html=html, protection=Protection(kinds, pattern), language="en", most=most)
    return build_document(source, form, reader(limit), "inputs")


def texts(found: Document) -> list[str]:
    return [segment.text for segment in found.segments]


def answer(found: Document, order: int) -> str:
    """As a model that repeats its source's words in another order, perfectly aligned: 1 the same, -1 from the end."""
    parts = []
    for part in found.parts:
        if isinstance(part, Segment):
            spans = [match.span() for match in WORDS.finditer(part.text)][::order]
            text = " ".join(part.text[start:stop] for start, stop in spans)
            targets = [match.span() for match in re.finditer(r"\S+", text)]
            aligned = [(start, target) for target, (start, _) in enumerate(spans)]
            parts.append(place(part, text, targets, aligned)[0])
        else:
            parts.append(part)
    return "".join(parts)


def test_sentences_and_what_is_between_them_are_the_text() -> None:
    source = "Dr. Smith paid $3.50. Was it good?\n\n  Yes.\n"
    found = document(source, kinds=())
    assert texts(found) == ["Dr. Smith paid $3.50.", "Was it good?", "Yes."]
    assert "".join(part if isinstance(part, str) else source[part.start : part.stop] for part in found.parts) == source


@given(st.text(max_size=60), st.sampled_from(["none", "lines", "sentences"]), st.booleans())
def test_nothing_of_any_text_is_lost(source: str, split: str, html: bool) -> None:
    found = document(source, split, html, kinds=(), limit=3)
    assert "".join(part if isinstance(part, str) else source[part.start : part.stop] for part in found.parts) == source
    assert all(text.strip() == text and text for text in texts(found)) or html


def test_a_sentence_that_is_too_long_is_cut_at_clauses_then_at_words_and_says_so() -> None:
    found = document("one two, three four five six seven eight nine", limit=4)
    assert texts(found) == ["one two,", "three four five six", "seven eight nine"]
    assert [segment.cut for segment in found.segments] == [True, True, False]


def test_more_segments_than_are_taken_are_refused() -> None:
    with pytest.raises(InvalidFieldError, match="max_segments"):
        document("a\n" * 11, "lines", most=10)


def test_a_sentence_may_be_longer_than_a_block() -> None:
    long = "word " * 800 + "end."
    assert texts(document(long + " Next.", limit=10**6)) == [long, "Next."]


def test_pieces_come_through_whether_the_vocabulary_has_them_or_not() -> None:
    source = "Hello {name}, see https://a.b/c?x=1 for %d items or a@b.com."
    for order in (1, -1):
        found = answer(document(source), order)
        assert all(found.count(piece) == 1 for piece in ("{name}", "https://a.b/c?x=1", "%d", "a@b.com"))


def test_a_pattern_of_the_request_is_linear_and_a_wrong_one_is_refused() -> None:
    assert "X-12" in answer(document("take X-12 now", pattern=r"[A-Z]-\d+"), -1)
    document("a" * 100_000 + "!", pattern="(a+)+$", kinds=())
    with pytest.raises(InvalidFieldError, match="RE2"):
        document("text", pattern="(?=x)")


def test_tags_follow_the_words_that_they_are_about() -> None:
    found = document("<p>A <b>red</b> <i>big house</i></p>", html=True)
    assert answer(found, -1) == "<p><i>house big</i> <b>red</b> A</p>"


def test_what_is_not_to_be_translated_is_not_read() -> None:
    source = '<p>Hi <code>x &lt; y</code></p><!-- c --><script>if (a<b) "</p>"</script><p translate="no">No no</p>'
    found = document(source, html=True)
    assert texts(found) == ["Hi x < y"]
    assert answer(found, 1) == source


def test_an_element_over_two_sentences_opens_in_one_and_closes_in_the_other() -> None:
    found = document("It is <b>big. And red</b> too.", html=True)
    assert answer(found, 1) == "It is <b>big . And red</b> too ."
    balanced(answer(document("It is <b>big. And red</b> too.", html=True), -1))


def test_the_scanner_is_linear_and_leaves_nothing_out() -> None:
    for part in ("<!--", '<a "', "<![CDATA[", "<script>", "</", "&#", "<x a='"):
        source = part * 20_000
        assert "".join(source[token.start : token.stop] for token in scan(source)) == source


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag + str(attrs))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def balanced(text: str) -> list[str]:
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return sorted(parser.seen)


TEXT = st.lists(st.sampled_from(["one", "two.", "Three", "&amp;", "&lt;x", ",", "{n}", "\n"]), max_size=4).map(" ".join)
HTML = st.recursive(
    TEXT | st.just("<img src='a>b'>"),
    lambda inner: st.builds(
        lambda tag, parts: f"<{tag} id=q>{' '.join(parts)}</{tag}>",
        st.sampled_from(["b", "i", "a", "span", "p", "div", "code"]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


@given(HTML, st.sampled_from([1, -1]))
def test_well_formed_in_is_well_formed_out_with_every_tag_once(source: str, order: int) -> None:
    assert balanced(answer(document(source, html=True), order)) == balanced(source)
