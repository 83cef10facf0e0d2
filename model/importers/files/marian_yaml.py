"""The YAML that Marian writes: flat options and vocabularies.

Read line by line: a YAML parser would take the tokens `no` and `y` for booleans, and some characters for line ends.
"""

from __future__ import annotations

import re
from typing import Any

WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


def options(text: str) -> dict[str, Any]:
    """`name: value` on each line; a list is `[a, b]`, or `- a` on the lines that follow. Raises ValueError."""
    found: dict[str, Any] = {}
    name = ""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip()
        if not line or line.lstrip().startswith("#") or line == "---":
            continue
        if line.lstrip().startswith("- ") and name:
            found[name] = [*(found[name] if isinstance(found[name], list) else []), scalar(line.lstrip()[2:])]
            continue
        name, colon, value = line.partition(":")
        if not colon or line[0].isspace():
            raise ValueError(f"line {number} is {line!r:.60}, and not `name: value`")
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            found[name] = [scalar(part) for part in value[1:-1].split(",") if part.strip()]
        else:
            found[name] = scalar(value)
    return found


def scalar(text: str) -> Any:
    text = text.strip()
    if text[:1] in ('"', "'"):
        return unquoted(text)
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 32 else text
        except ValueError:
            continue
    return text


def unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return ESCAPE.sub(_escaped, text[1:-1])
    return text


def _escaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return ESCAPED.get(match[4], match[4])
    value = int(code, 16)
    return chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else match[0]


def vocabulary(lines: list[str]) -> dict[str, Any]:
    """`token: id` on each line, or `? token` and `: id` on two. Raises ValueError."""
    found: dict[str, Any] = {}
    long: str | None = None
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if long is None and line.startswith("? "):
            long = line[2:]
            continue
        if not line.strip() or line == "---":
            continue
        token, colon, index = (long, ":", line[1:]) if long is not None else line.rpartition(":")
        if not colon or not index.strip().isdecimal() or len(index) > 20:
            raise ValueError(f"line {number} is {line!r:.60}, and not `token: id`")
        token, long = unquoted(token.strip(" ")), None
        if token in found:
            raise ValueError(f"line {number} has {token!r:.60} a second time")
        found[token] = int(index)
    return found
