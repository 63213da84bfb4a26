"""Text and title of HTML, and the title of Markdown."""

import re
from importlib import import_module
from typing import Any

from unmask.optional import require

_DROPPED = "head iframe math nav noscript object script style svg template -comment -document-type"
_PARAGRAPHS = (
    "address article aside blockquote body dd details dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 "
    "header hgroup hr main menu ol p pre section table ul"
)
_LINES = "br caption div figcaption legend li option summary tbody tfoot thead tr"
DROPPED = frozenset(_DROPPED.split())
"""Elements that hold no text of the document."""
PARAGRAPHS = frozenset(_PARAGRAPHS.split())
"""Elements that a blank line separates from what stands around them."""
LINES = frozenset(_LINES.split())
"""Elements that begin a line, and end it."""
CELLS = frozenset(("td", "th"))
SPACE = re.compile(r"[ \t\n\r\f]+")
"""White space that HTML collapses; a no-break space stays."""

HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
FENCE = re.compile(r" {0,3}(```|~~~)")


def html_text(source: str) -> tuple[str, str]:
    """The text of an HTML page as it reads, and its title.

    White space is collapsed but in ``pre``; blocks stand on lines of their own, and paragraphs have a blank
    line between them.
    """
    require("search")
    parser = import_module("selectolax.lexbor").LexborHTMLParser(source)
    title = parser.css_first("title") or parser.css_first("h1")
    body = parser.body
    text = "" if body is None else _Text().of(body)
    return text, "" if title is None else SPACE.sub(" ", title.text()).strip()


class _Text:
    """Collects the text of a tree of elements."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.breaks = 0
        """Line ends to write before the next text."""
        self.space = False
        """Whether to write a space before the next text."""

    def of(self, root: Any) -> str:
        """The text below ``root``, whose depth is not limited by Python's stack."""
        waiting: list[tuple[Any, bool, bool]] = [(root, False, False)]  # node, whether it ends, inside pre
        while waiting:
            node, ends, kept = waiting.pop()
            tag = node.tag
            if tag == "-text":
                self._write(node.text_content or "", kept)
            elif tag not in DROPPED:
                self._border(tag)
                if not ends and node.child is not None:
                    kept = kept or tag in ("pre", "textarea")
                    waiting.append((node, True, kept))
                    children = []
                    child = node.child
                    while child is not None:
                        children.append((child, False, kept))
                        child = child.next
                    waiting.extend(reversed(children))
        return "".join(self.parts)

    def _border(self, tag: str) -> None:
        if tag == "br":
            self.breaks += 1
        elif tag in PARAGRAPHS:
            self.breaks = max(self.breaks, 2)
        elif tag in LINES:
            self.breaks = max(self.breaks, 1)
        elif tag in CELLS:
            self.space = True

    def _write(self, text: str, kept: bool) -> None:
        words = text if kept else SPACE.sub(" ", text)
        if not words.strip(" \n" if kept else " "):
            self.space = self.space or bool(words)
            if kept:
                self.breaks += words.count("\n")
            return
        if self.breaks:
            if self.parts:
                self.parts.append("\n" * min(self.breaks, 2))
            words = words.lstrip("\n") if kept else words.lstrip(" ")
        elif (self.space or words[0] == " ") and self.parts:
            words = " " + words.lstrip(" ")
        elif not self.parts:
            words = words.lstrip(" ")
        self.breaks, self.space = 0, False
        if kept:
            self.breaks = len(words) - len(words.rstrip("\n"))
            words = words.rstrip("\n")
        else:
            self.space = words[-1] == " "
            words = words.rstrip(" ")
        self.parts.append(words)


def markdown_title(source: str) -> str:
    """The first heading outside blocks of code."""
    above, fence = "", ""
    for line in source.splitlines():
        if found := FENCE.match(line):
            fence = "" if fence == found[1] else fence or found[1]
            above = ""
        elif not fence:
            if found := HEADING.fullmatch(line):
                return found[1]
            if above and UNDERLINE.fullmatch(line):
                return above
            above = line.strip()
    return ""
