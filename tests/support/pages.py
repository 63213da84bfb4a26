"""Pages that a reader follows from top to bottom: their blocks run in order, and their outputs are compared.

``sh`` and ``python`` blocks run. A ``text`` block right after such a block is what it prints: ``...`` stands
for anything, and numbers that are not whole may differ by a tolerance. Blocks of other languages are not run.
"""

import contextlib
import io
import re
import shlex
import subprocess
from dataclasses import dataclass

from tests.support.command import run_here

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """A block of code, and what the page says it prints."""

    language: str
    code: str
    shown: str | None


def blocks_of(content):
    """The blocks of a page, outputs joined to what prints them."""
    found = []
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```$", content, re.MULTILINE | re.DOTALL):
        if language == "text" and found:
            found[-1] = Block(found[-1].language, found[-1].code, code)
        else:
            found.append(Block(language, code, None))
    return found


def plain(text):
    """A text with single spaces, in which lines that were broken behind a comma are joined."""
    return re.sub(r"\s+", " ", text.strip().replace(",\n", ","))


def is_shown(shown, printed, near):
    """Whether a page shows what was ``printed``, except for spaces, line breaks and durations.

    Numbers with a decimal point may differ by ``near``.
    """
    shown, printed = (re.sub(r"\d\.\d s\b", "DURATION", plain(one)) for one in (shown, printed))
    pattern, values, end = "", [], 0
    for one in re.finditer(rf"\.\.\.|{NUMBER.pattern}", shown):
        pattern += re.escape(shown[end : one.start()])
        end = one.end()
        if one[0] == "...":
            pattern += ".*?"
        elif "." in one[0]:
            pattern += f"({NUMBER.pattern})"
            values.append(float(one[0]))
        else:
            pattern += re.escape(one[0])
    matched = re.fullmatch(pattern + re.escape(shown[end:]), printed)
    return matched is not None and all(
        abs(float(found) - value) <= near for found, value in zip(matched.groups(), values, strict=True)
    )


def run_python(code, names, page):
    """What it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), names)
    return printed.getvalue()


def run_shell(code, server=None):
    """What its lines print: ours run in this process, and curl asks the client of ``server``.

    Standard error counts only if a command of ours failed. All other lines run in a shell.
    """
    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if "unmask" in words:
            at = words.index("unmask")
            fed = shlex.join(words[: at - 1]) if at else "true"
            stdin = subprocess.run(["sh", "-c", fed], check=True, stdout=subprocess.PIPE).stdout
            ran = run_here(*words[at + 1 :], stdin=stdin)
            printed += ran.err if ran.code else ran.out
        elif words[0] == "curl":
            printed += asked(words, server.client)
        else:
            subprocess.run(["sh", "-c", line], check=True)
    return printed


def asked(words, client):
    """What a server answers to ``curl URL [-H HEADER] [-d BODY]``."""
    path = words[1].removeprefix("http://127.0.0.1:8080")
    if "-d" not in words:
        return client.get(path).text
    body = words[words.index("-d") + 1]
    if body.startswith("@"):
        with open(body[1:], encoding="utf-8") as file:
            body = file.read()
    return client.post(path, content=body, headers={"content-type": "application/json"}).text


def outputs_of(content, page, server=None):
    """Every block of a page that runs, with what it prints."""
    names = {}
    for block in blocks_of(content):
        if block.language == "python":
            yield block, run_python(block.code, names, page)
        elif block.language == "sh":
            yield block, run_shell(block.code, server)


def wrong_outputs(content, page, *, near=0.015, server=None):
    """The blocks of a page that print something other than it shows, with what they print."""
    return [
        (block.code, block.shown, printed)
        for block, printed in outputs_of(content, page, server)
        if block.shown is not None and not is_shown(block.shown, printed, near)
    ]


def broken_links(page):
    """The links of a page to files, or to headings of pages, that are not there."""
    broken = []
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (heading and heading not in headings(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def headings(content):
    """The anchors of a page's headings, as GitHub makes them."""
    plain_titles = (
        title.replace("`", "").lower() for title in re.findall(r"^#+ (.+)$", content, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain_titles}
