"""A page that is saved to disk: the built page in one file, with the answers of some paths inside."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence

from unmask.explorer.export.live_model import LIVE
from unmask.explorer.page import STATIC
from unmask.explorer.routes.session import SessionRequest, StampRequest, StateRequest, TextRequest
from unmask.explorer.sessions.provenance import one_line
from unmask.http.responses import JSON, Answer, Refused
from unmask.tasks import Progress

MOST_PATHS = 5000
MOST_BYTES = 50_000_000
"""The most bytes of all answers of one file."""

FRAME = '<meta name="unmask-source" content="frame" data-hash="{}" />'
"""Says to the page that its answers come through the page around it, and what is looked at first."""

Get = Callable[[str], Answer]


def saved_page(
    get: Get,
    paths: Sequence[str],
    hash_: str,
    title: str = "unmask",
    *,
    views: Sequence[str] = (),
    live: str | None = None,
    progress: Progress | None = None,
) -> bytes:
    """The page as one HTML file.

    Args:
        get: the answer of a path of the API.
        paths: what is kept, each as the page asks for it, query included. The session, and of every text its
            description, its state and its stamp, are kept too.
        hash_: what is looked at, as behind ``#`` in the address.
        title: of the file.
        views: ids of the views that the paths are for; the page offers no others. None of them: all.
        live: a model with which the page reads further texts, see `live_model`.
        progress: called with (answers so far, paths) before each answer.

    Raises:
        Refused: a text is not held any more, or the answers are more than one file should hold.
    """
    answers: dict[str, dict[str, object]] = {}
    size = 0
    for number, path in enumerate(dict.fromkeys(_with_texts(paths)), start=1):
        if live is not None and path.startswith("live?"):
            continue  # the model in the file answers it
        if progress is not None:
            progress(min(number, len(paths)), len(paths))
        answer = get(path)
        _check(answer)
        text = _text(answer)
        size += len(text)
        if size > MOST_BYTES:
            raise Refused(
                413,
                "TooLarge",
                f"what was looked at takes more than the {MOST_BYTES // 1_000_000} MB of one file; "
                "look at less, or at a shorter text, and save again",
            )
        answers[path] = {"status": answer.status, "type": answer.media_type, "data": text}
    stamps = [
        json.loads(str(answers[path]["data"])) for path in answers if re.fullmatch(r"texts/[^/]+/stamp", path)
    ]
    saved = {"hash": hash_, "answers": answers, "stamp": one_line(stamps, hash_), "views": list(views)}
    # "<" is written as an escape, so that nothing in the data can end the element that holds it.
    data = json.dumps(saved, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    embedded = f'<script type="application/json" id="unmask-saved">{data}</script>'
    if live is None:
        return _inlined(title, body=embedded).encode("utf-8", "replace")
    embedded += f'<script type="text/plain" id="unmask-live">{live}</script>'
    script = (LIVE / "live.js").read_text(encoding="utf-8")
    return _inlined(title, body=embedded, first=script).encode("utf-8", "replace")


def framed_page(hash_: str) -> str:
    """The page as one HTML document that asks the page around it; a frame has no address for ``hash_``."""
    return _inlined("unmask explorer", head=FRAME.format(html.escape(hash_)))


def _with_texts(paths: Sequence[str]) -> list[str]:
    """The paths, each after what the page must know of its texts."""
    needed = [str(SessionRequest())]
    for path in paths:
        text = re.match(r"texts/([^/?]+)", path)
        compared = re.match(r"(?:compare|change)/([^/?]+)/([^/?]+)", path)
        match = text or compared
        for name in match.groups() if match else ():
            needed += [str(request(name)) for request in (TextRequest, StateRequest, StampRequest)]
        needed.append(path)
    return needed


def _check(answer: Answer) -> None:
    """Refusals are kept, so that a view can say why; those of a missing text or server are raised."""
    if answer.status < 400:
        return
    problem = json.loads(answer.data)["error"]
    if answer.status >= 500 or problem["kind"] in ("UnknownText", "UnknownRoute"):
        raise Refused(answer.status, problem["kind"], problem["sentence"])


def _text(answer: Answer) -> str:
    if answer.media_type.startswith((JSON, "text/")):
        return answer.data.decode("utf-8")
    return base64.b64encode(answer.data).decode("ascii")


def _inlined(title: str, *, head: str = "", body: str = "", first: str | None = None) -> str:
    """The built page with its script, its style and its icon inside, and a policy that allows these alone.

    ``first`` is a script that runs before that of the page, and may compile WebAssembly.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    scripts = [] if first is None else [_in_element(first)]
    styles: list[str] = []

    def script(match: re.Match[str]) -> str:
        scripts.append(_in_element(_asset(match[1])))
        return ""

    def style(match: re.Match[str]) -> str:
        styles.append(_asset(match[1]))
        return f"<style>{styles[-1]}</style>"

    def icon(match: re.Match[str]) -> str:
        written = base64.b64encode((STATIC / "assets" / match[2]).read_bytes()).decode("ascii")
        return f'{match[1]}href="data:image/svg+xml;base64,{written}"'

    page = re.sub(r'<script[^>]*src="/assets/([^"]+)"[^>]*></script>', script, page)
    page = re.sub(r'<link[^>]*rel="stylesheet"[^>]*href="/assets/([^"]+)"[^>]*>', style, page)
    page = re.sub(r'(<link[^>]*rel="icon"[^>]*)href="/assets/([^"]+)"', icon, page)
    page = re.sub(r"<link[^>]*modulepreload[^>]*>", "", page)
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(title)}</title>", page)
    policy = _policy(scripts, styles, compiles=first is not None)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    page = page.replace("<head>", f"<head>\n    {policy}{head}", 1)
    tail = body + "".join(f'<script type="module">{script}</script>' for script in scripts)
    return page.replace("</body>", f"{tail}\n  </body>", 1)


def _in_element(script: str) -> str:
    """A script that does not end the element which holds it."""
    return script.replace("</script", "<\\/script")


def _policy(scripts: Sequence[str], styles: Sequence[str], *, compiles: bool) -> str:
    """The file asks for nothing outside and runs no script but its own; the browser holds it to that."""
    allowed = f"{_hashes(scripts)} 'wasm-unsafe-eval'" if compiles else _hashes(scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hashes(styles)}; "
        "img-src data: blob:; form-action 'none'; base-uri 'none'"
    )


def _hashes(contents: Sequence[str]) -> str:
    digests = (hashlib.sha256(content.encode("utf-8")).digest() for content in contents)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)


def _asset(name: str) -> str:
    return (STATIC / "assets" / name).read_text(encoding="utf-8")
