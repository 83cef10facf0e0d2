"""Documents: segments and what is between them are the source; markup and pieces come through, wherever they land."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.service.documents import building, markup
from attendant.service.documents.building import Format, Reader, build_document
from attendant.service.documents.document import Document, Segment
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
    for segment in found.segments:
        assert segment.text.strip() == segment.text or split == "none"
        if not html:
            assert segment.text == source[segment.start : segment.stop]
            assert any(map(str.isalnum, segment.text))
    between = "".join(part for part in found.parts if isinstance(part, str))
    assert html or not any(map(str.isalnum, between))


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


def test_a_piece_that_replaces_what_the_answer_has_keeps_the_white_space_beside_it() -> None:
    """The model wrote no copy of {name}, and what is aligned with it is the full stop, which has no space before it."""
    (segment,) = document("It is {name} now", kinds=("placeholders",)).segments
    text = "Es ist. jetzt"
    targets = [(0, 2), (3, 6), (6, 7), (8, 13)]
    assert place(segment, text, targets, [(0, 0), (3, 1), (6, 2), (13, 3)])[0] == "Es ist {name} jetzt"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://a.b/c?x=1.", ["https://a.b/c?x=1"]),
        ("(https://a.b/c)", ["https://a.b/c"]),
        ("https://a.b/{id}, and www.a.b/{{name}}/c!", ["https://a.b/{id}", "www.a.b/{{name}}/c"]),
        ("https://a.b/{id", ["https://a.b/"]),
        ("https:// a http://. b", []),
        ("%s {0} ${x} %(n)s %1$s 100% sure %dog", ["%s", "{0}", "${x}", "%(n)s", "%1$s"]),
        ("a.b+c@d.example.org, not @d", ["a.b+c@d.example.org"]),
    ],
)
def test_what_is_protected(text: str, found: list[str]) -> None:
    assert [text[start:stop] for start, stop in Protection(("placeholders", "urls", "emails")).find(text)] == found


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
    turned = answer(document("It is <b>big. And red</b> too.", html=True), -1)
    assert turned == "<b>. big</b> is It <b>red And</b> . too" or turned.index("<b>") < turned.index("</b>")


class Counted(str):
    """A source that counts the characters that its searches go over."""

    looked_at = 0

    def find(self, part: str, start: int = 0, stop: int | None = None) -> int:  # type: ignore[override]
        found = super().find(part, start, stop)
        self.looked_at += (len(self) if found < 0 else found) - start
        return found


class Pattern:
    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def search(self, source: Counted, start: int, stop: int = sys.maxsize) -> re.Match[str] | None:
        found = self._pattern.search(source, start, stop)
        source.looked_at += (found.end() if found else min(len(source), stop)) - start
        return found

    def match(self, source: Counted, start: int) -> re.Match[str] | None:
        found = self._pattern.match(source, start)
        source.looked_at += found.end() - start if found else 1
        return found


@pytest.mark.parametrize("part", ["<!--", '<a "', "<![CDATA[", "<script>", "</", "&#", "<x a='", "<b>", "<script></a>"])
def test_the_scanner_is_linear_and_leaves_nothing_out(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long a source is twice as much that is looked at."""
    for name in ("NAME", "ENDING", "UNTRANSLATED"):
        monkeypatch.setattr(markup, name, Pattern(getattr(markup, name)))
    monkeypatch.setattr(markup, "re", SimpleNamespace(compile=lambda *given: Pattern(re.compile(*given)), I=re.I))
    work = []
    for count in (500, 1000):
        source = Counted(part * count)
        assert "".join(source[token.start : token.stop] for token in markup.scan(source)) == source
        work.append(source.looked_at)
    assert 0 < work[1] < 2.5 * work[0]


@pytest.mark.parametrize(("part", "answers"), [("<b>", 0), ("one <b>", 1), ("one {n}", 1)])
def test_more_tags_in_a_sentence_than_are_taken_are_refused(part: str, answers: int) -> None:
    source = part * (building.MOST_NODES + 2)
    if answers:
        with pytest.raises(InvalidFieldError, match="tags and protected pieces in one sentence"):
            document(source, "none", html=True, limit=10**6)
    else:
        assert document(source, "none", html=True).segments == []
