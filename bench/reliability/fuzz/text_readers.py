"""Readers of texts: glossaries, documents with markup and patterns, records of bulk runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet

from attendant.service.bulk.formats import LineSource, read_object
from attendant.service.bulk.parquet import ParquetSource, ParquetUsageError
from attendant.service.documents import building
from attendant.service.documents.document import Segment
from attendant.service.documents.protection import KINDS, Protection, compiled
from attendant.service.errors import InvalidFieldError, StartError
from attendant.service.text.glossary import fold, read_glossary
from bench.reliability.fuzz.reader import Reader

GLOSSARY = "# terms\ncat\tKatze\tKätzchen\nCAT scan\tCT\nİstanbul\tIstanbul\n猫\tKatze\n".encode()
HTML = (
    b"<!doctype html><p class=\"x\" translate='no'>One <b>two</b> three &amp; four &#x41; &notin; {{name}}.</p>"
    b"<script>if (a < b) {}</script><pre>x\ty</pre><ul><li>First.<li>Second <a href='http://a.b/?c=d'>e.f@g.com</a>"
    b"</ul><!-- c --><![CDATA[x]]><br/>Dr. No said %s. \xe4\xbd\xa0\xe5\xa5\xbd\xe3\x80\x82\n\n  Last\xc2\xa0line"
)
MARKS = (
    b"<b>",
    b"</b>",
    b"</p>",
    b"<!--",
    b"-->",
    b"&amp;",
    b"&#",
    b"<script>",
    b"</script>",
    b"<pre>",
    b"\xe2\x80\xa8",
)
PATTERNS = [rb"\d{1,4}(?:st|nd)?", rb"(?i)[A-Z][a-z]+\b|\p{Greek}", rb"((a+)+|(b{2,10}){3})*c", rb"\Q$5\E|[[:alpha:]]"]
LINES = b"""{"text": "cat", "id": 1}
{"text": "dog", "hypotheses": [], "n": {"a": [1e3, null, true, "\\u00e9\\ud83d\\ude00"]}}
"""
TEXT = "The cat sat at 5 on the 3rd mat, and αβγ $5 bbbbbb c."


def _find(path: Path) -> object:
    glossary = read_glossary(path)
    text = " ".join(pair.source for pair in glossary.pairs())[:2000]
    assert len(fold(text)) == len(text), "folding moved places"
    return glossary.find(text)


def _document(html: bool, split: str) -> Reader:
    """The parts of a document are its source, whatever that is."""
    form = building.Format(
        split=split, html=html, protection=Protection(KINDS, r"\d+"), language="en", most=10_000
    )  # fmt: skip
    reader = building.Reader(
        limit=32,
        spans=lambda text: [found.span() for found in re.finditer(r"\S", text)],
        knows=lambda text: "@" not in text,
    )

    def read(path: Path) -> None:
        source = path.read_bytes().decode("utf-8", "replace")
        parts = building.build_document(source, form, reader, "inputs").parts
        joined = "".join(source[part.start : part.stop] if isinstance(part, Segment) else part for part in parts)
        assert joined == source, "the parts are not the source"

    return Reader(read, lambda: [HTML, TEXT.encode()], (InvalidFieldError,), words=MARKS, share=0.5)


def _pattern(path: Path) -> object:
    pattern = path.read_bytes().decode("utf-8", "replace")
    compiled.cache_clear()
    return Protection((), pattern).find(TEXT * 20)


def _records(path: Path) -> int:
    """Each line is an object or is refused; the places cover the file."""
    size = 0
    for raw, taken in LineSource(path).read(0):
        size += taken
        try:
            read_object(raw)
        except InvalidFieldError:
            continue
    assert size == path.stat().st_size, "bytes were left out"
    return size


def _parquet() -> list[bytes]:
    found = []
    for options in ({"compression": "snappy"}, {"compression": "none", "use_dictionary": False}):
        table = pyarrow.table({"text": ["cat", None, "dog" * 20] * 20, "id": range(60), "x": [[1.5], [], None] * 20})
        file = io.BytesIO()
        pyarrow.parquet.write_table(table, file, row_group_size=25, **options)
        found.append(file.getvalue())
    return found


def _rows(path: Path) -> int:
    count = 0
    for row, _ in ParquetSource(path, "text").read(0):
        row.batch.column("text")[row.index].as_py()
        count += 1
    return count


TEXTS: dict[str, Reader] = {
    "glossary": Reader(_find, lambda: [GLOSSARY], (StartError,), words=(b"\t", b"\n", "İ".encode(), b"\xef\xbb\xbf")),
    "HTML by sentences": _document(html=True, split="sentences"),
    "HTML by lines": _document(html=True, split="lines"),
    "text by sentences": _document(html=False, split="sentences"),
    "protect_pattern": Reader(
        _pattern, lambda: PATTERNS, (InvalidFieldError,), words=(b"{1000}", b"\\p{", b"(?", b"*")
    ),
    "bulk JSONL": Reader(_records, lambda: [LINES], (), words=(b"\n", b"\\ud800", b"[" * 5000)),
    "bulk Parquet": Reader(_rows, _parquet, (ParquetUsageError, UnicodeDecodeError), share=0.5),
}
