"""The tutorial and the walk as pages beside the page itself, from docs: `make guides`, after a change of either.

They are committed, so that a wheel has them and serving needs no Markdown. Links lead to what is served, else they are
plain text; pictures are left to the views that draw them live.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
DOCS, OUT = ROOT / "docs", ROOT / "service" / "http" / "page" / "static"
GUIDES = ("tutorial", "walk")
SERVED = {f"{name}.md": f"/page/{name}.html" for name in GUIDES} | {"page.md": "/", "api.md": "/docs"}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Attendant</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/page/style.css">
<link rel="stylesheet" href="/page/views.css">
</head>
<body class="guide">
<nav><a href="/">Attendant</a> · <a href="/page/tutorial.html">Tutorial</a> · <a href="/page/walk.html">A walk</a></nav>
<main class="card">
{body}</main>
</body>
</html>
"""


def main() -> None:
    for name in GUIDES:
        (OUT / f"{name}.html").write_text(rendered(name), encoding="utf-8")


def rendered(name: str) -> str:
    """A page of docs as HTML."""
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    for opening, content in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", anchor(content.content))
    for token in tokens:
        token.children = _local(token.children) if token.children else token.children
    title = next(token.content for token in tokens if token.type == "inline")
    return PAGE.format(title=title, body=parser.renderer.render(tokens, parser.options, {}))


def anchor(heading: str) -> str:
    """As GitHub names it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _local(tokens: list[Token]) -> list[Token]:
    """Links to what is served; one to elsewhere is its text, a picture its description."""
    found, is_served = list[Token](), True
    for token in tokens:
        if token.type == "image":
            found += [Token("em_open", "em", 1), *(token.children or []), Token("em_close", "em", -1)]
            continue
        if token.type == "link_open":
            path, _, section = str(token.attrGet("href")).partition("#")
            target = SERVED.get(path)
            is_served = target is not None
            if target:
                token.attrSet("href", f"{target}#{section}" if section and target != "/docs" else target)
        if is_served or not token.type.startswith("link_"):
            found.append(token)
    return found


if __name__ == "__main__":
    main()
