"""``unmask gallery``: saved pages of many texts and an index with pictures, in one folder."""

import hashlib
import json as json_
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import unmask
from unmask.base.files import check_regular, unwritable, whole_file
from unmask.cli.look.report import HELD_BYTES, first_words, measure, write_page
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TruncationOption
from unmask.cli.output import print_json, progress
from unmask.errors import InvalidRequest, InvalidText, OutputError, UnmaskError
from unmask.text.lines import lines
from unmask.text.rows import json_rows

if TYPE_CHECKING:
    from unmask.explorer.api import Api
    from unmask.explorer.export.gallery import Card
    from unmask.explorer.export.views import ViewSelection


RECORD = "gallery.json"
"""What was written, so that it is not computed again."""


INDEX = "index.html"


KINDS = ("edge", "same", "punctuation", "previous", "next")
"""Kinds of findings about a head, those about words of the text first."""


MOST_WORDS = 160
"""Characters of a text on its card."""


@dataclass(frozen=True)
class GalleryText:
    """One page that is asked for."""

    text: str
    pair: str | None = None
    title: str | None = None
    view: str = "overview"
    layer: int | None = None
    head: int | None = None
    """Without a layer and a head, those of the finding on its card."""
    model: str | None = None
    """None is the model of the command."""
    name: str = ""
    """What errors call it: its line and its file."""


@dataclass(frozen=True)
class Gallery:
    """Summary of the written gallery."""

    index: Path
    pages: tuple[str, ...]
    """Files of the folder, in the order of the texts."""
    written: int
    kept: int
    """Pages that were there already."""
    left: tuple[str, ...]
    """Pages of texts that are no longer in the list."""


class _Writer:
    """Writes the files of one folder."""

    def __init__(self, folder: Path, run: RunOptions, model: str, cut: bool) -> None:
        self.folder, self.run, self.model, self.cut = folder, run, model, cut
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        self._record = folder / RECORD
        self._cards = self._read()
        self._digests: dict[str, str] = {}

    def _read(self) -> dict[str, "Card"]:
        """Cards of the pages that are recorded, by their fingerprints."""
        from unmask.explorer.export.gallery import Card

        if not self._record.exists():
            if (self.folder / INDEX).exists():
                raise OutputError(
                    f"{self.folder / INDEX} exists already and was not written by unmask gallery; name "
                    "another folder"
                )
            return {}
        try:
            record = json_.loads(self._record.read_text(encoding="utf-8"))
            return {fingerprint: Card(**card) for fingerprint, card in record["pages"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise OutputError(
                f"{self._record} is damaged; remove it, and all pages are written again"
            ) from None

    def kept(self, listed: tuple[GalleryText, ...]) -> dict[GalleryText, "Card"]:
        """Cards of those texts whose pages are there."""
        cards = (
            ((listed_text, self._cards.get(self._fingerprint(listed_text))) for listed_text in listed)
            if self._cards
            else ()
        )
        return {
            listed_text: card
            for listed_text, card in cards
            if card is not None and _sha256(self.folder / card.file) == card.sha256
        }

    def _fingerprint(self, listed_text: GalleryText) -> str:
        """What a page depends on: the text and how it is read, the weights, the package and its page."""
        from unmask.explorer.page import STATIC

        settings: dict[str, object] = {
            **vars(listed_text),
            "name": None,
            "model": listed_text.model or self.model,
        }
        settings["weights"] = self._weights(listed_text.model or self.model)
        settings |= {
            "run": {**vars(self.run), "threads": None},
            "cut": self.cut,
            "unmask": unmask.__version__,
        }
        settings["page"] = (STATIC / "index.html").read_text(encoding="utf-8")
        return hashlib.sha256(json_.dumps(settings, sort_keys=True).encode()).hexdigest()

    def _weights(self, name: str) -> str:
        """A digest of a model's contents, which may change under the same name."""
        from unmask.explorer.sessions.models import digest_of
        from unmask.models.load import Model

        if name not in self._digests:
            loaded = self.run.load(name)
            self._digests[name] = loaded.content_digest() if isinstance(loaded, Model) else digest_of(loaded)
        return self._digests[name]

    @contextmanager
    def opened(self, name: str) -> Iterator["Api"]:
        """The API of one model."""
        from unmask.explorer.api import Api

        api = Api([(name, partial(self.run.load, name))], held_texts=1, held_bytes=HELD_BYTES)
        try:
            yield api
        finally:
            api.close()

    def page(self, api: "Api", listed_text: GalleryText) -> "Card":
        """Write the page of one text and record it."""
        from unmask.explorer.export.gallery import Card, map_picture

        too_long = "cut" if self.cut else "error"
        try:
            session = api.ask(
                "texts", {"text": listed_text.text, "pair": listed_text.pair, "too_long": too_long}
            )
            measure(api, session["id"], session["model"])
            finding = _finding(api, session["id"])
            look = _look(listed_text, finding)
            fingerprint = self._fingerprint(listed_text)
            title = listed_text.title or first_words(listed_text.text)
            file = f"{_slug(title)}-{fingerprint[:8]}.html"
            write_page(api, [session], look, self.folder / file, cut=self.cut, title=title)
            codes = _codes(api, session, look)
        except UnmaskError as error:
            raise InvalidRequest(f"{listed_text.name}: {error}") from None
        where = f"layer {look.layer}, head {look.head}"
        card = Card(
            file=file,
            title=title,
            words=_cut_short(
                listed_text.text if listed_text.pair is None else f"{listed_text.text} / {listed_text.pair}"
            ),
            sentence=finding["sentence"] if finding else "",
            about=f"{session['model']}, {session['kept_tokens']:,} tokens; the picture is {where}",
            picture=map_picture(codes, f"Attention of {where}"),
            sha256=_sha256(self.folder / file),
        )
        self._cards[fingerprint] = card
        self._write_record()
        return card

    def index(self, cards: list["Card"], title: str) -> tuple[str, ...]:
        """Write the index; return the recorded pages that are not in it."""
        from unmask.explorer.export.gallery import index_page

        with whole_file(self.folder / INDEX) as partial_file:
            partial_file.write_bytes(index_page(cards, title, unmask.__version__))
        files = {card.file for card in cards}
        others = {card.file for card in self._cards.values()} - files
        return tuple(sorted(file for file in others if (self.folder / file).is_file()))

    def _write_record(self) -> None:
        pages = {fingerprint: asdict(card) for fingerprint, card in sorted(self._cards.items())}
        with whole_file(self._record) as partial_file:
            partial_file.write_text(
                json_.dumps({"pages": pages}, indent=1) + "\n", encoding="utf-8", newline="\n"
            )


def gallery(
    texts: Annotated[
        Path,
        Parameter(
            help="the list: .txt with one text a line, or .jsonl with text and, if you like, pair, title, "
            "view, layer and head, model"
        ),
    ],
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="the folder to write")],
    model: ModelOption = "default",
    run: RunOptions = RUN,
    title: Annotated[str, Parameter(help="the heading of the index")] = "A gallery of attention",
    truncation: TruncationOption = "error",
    overwrite: Annotated[
        bool, Parameter(negative="", help="write pages again that are there already")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write a folder of saved pages, one for each text of a list, and an index.html with pictures.

    Every page is one file that works offline, as those of `unmask report`. It opens on the overview, at the
    head that links two words most. Run the command again after adding texts: pages that are there are kept.
    """
    listed = read_gallery_texts(texts)
    models = {listed_text.model or model for listed_text in listed}
    if run.revision is not None and len(models) > 1:
        raise InvalidRequest(f"--revision {run.revision} was given for {len(models)} models; leave it out")
    writer = _Writer(output, run, model, truncation == "end")
    cards = {} if overwrite else writer.kept(listed)
    missing = [listed_text for listed_text in listed if listed_text not in cards]
    with progress("pages", len(missing)) as done:
        for name in dict.fromkeys(listed_text.model or model for listed_text in missing):
            with writer.opened(name) as api:
                for listed_text in missing:
                    if (listed_text.model or model) == name:
                        cards[listed_text] = writer.page(api, listed_text)
                        done(len(cards) - (len(listed) - len(missing)), len(missing))
    left = writer.index([cards[listed_text] for listed_text in listed], title)
    result = Gallery(
        index=output / INDEX,
        pages=tuple(cards[listed_text].file for listed_text in listed),
        written=len(missing),
        kept=len(listed) - len(missing),
        left=left,
    )
    if json:
        print_json(result)
        return
    print(f"{result.index}: {len(result.pages)} pages, {result.written} of them new; open it in a browser")
    if left:
        print(f"not in the list any more, and left in the folder: {', '.join(left)}")


def _finding(api: "Api", text_id: str) -> dict[str, Any] | None:
    """The finding of a card: about this text rather than one that is the same for every text."""
    findings: list[dict[str, Any]] = api.ask(f"texts/{text_id}/findings")["findings"]
    by_kind = {each["kind"]: each for each in findings if each["head"] is not None}
    chosen = next((by_kind[kind] for kind in KINDS if kind in by_kind), None)
    return chosen or (findings[0] if findings else None)


def _look(listed_text: GalleryText, finding: dict[str, Any] | None) -> "ViewSelection":
    from unmask.explorer.export.views import ViewSelection
    from unmask.explorer.page import OF_A_TEXT

    views = (listed_text.view, *(view for view in OF_A_TEXT if view != listed_text.view))
    if listed_text.layer is not None and listed_text.head is not None:
        return ViewSelection(views, listed_text.layer, listed_text.head)
    if finding is None or finding["head"] is None:
        return ViewSelection(views)
    return ViewSelection(views, finding["layer"], finding["head"], finding["query"])


def _codes(api: "Api", session: dict[str, Any], look: "ViewSelection") -> Any:
    """The map of the head, whole: the tile of the last zoom level."""
    from unmask.explorer.routes.maps import TileRequest
    from unmask.explorer.wire.binary import unpack
    from unmask.explorer.wire.tiles import levels

    level = levels(len(session["tokens"])) - 1
    path = str(TileRequest(session["id"], look.layer, look.head, level, 0, 0))
    arrays, _ = unpack(api.answer("GET", path).data)
    return arrays["codes"]


def _sha256(path: Path) -> str:
    """Of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _slug(title: str) -> str:
    """A title as a part of a file name: letters and digits of ASCII."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return "-".join(re.findall("[a-z0-9]+", plain.lower()))[:48].strip("-") or "text"


def _cut_short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 1].rstrip()}…"


def read_gallery_texts(path: Path) -> tuple[GalleryText, ...]:
    """The texts of a ``.jsonl`` file, or of a file with one text a line; blank lines are left out.

    Raises:
        InvalidText: a line is not UTF-8, no JSON object, or has a key or a value that does not fit; the error
            names the line.
        InvalidRequest: the file cannot be read or has no text.
    """
    check_regular(path, InvalidRequest)
    listed = tuple(_of_json(path) if path.suffix == ".jsonl" else _of_lines(path))
    if not listed:
        raise InvalidRequest(
            f"{path} has no text; write one text a line, or .jsonl with a text in each object"
        )
    seen: dict[GalleryText, str] = {}
    for listed_text in listed:
        known = seen.setdefault(
            GalleryText(**{**vars(listed_text), "name": "", "title": None}), listed_text.name
        )
        if known != listed_text.name:
            raise InvalidText(f"{listed_text.name} asks for the same page as {known}; leave one of them out")
    return listed


def _of_lines(path: Path) -> Iterator[GalleryText]:
    for number, line in lines(path):
        if line.strip():
            yield GalleryText(line.strip(), name=f"line {number} of {path}")


def _of_json(path: Path) -> Iterator[GalleryText]:
    for place, row in json_rows(path):
        yield _checked(row, str(place))


def _checked(row: Mapping[str, Any], name: str) -> GalleryText:
    keys = [field.name for field in fields(GalleryText) if field.name != "name"]
    unknown = [key for key in row if key not in keys]
    if unknown:
        raise InvalidText(f"{name} has a key {unknown[0]!r}; there are {', '.join(keys)}")
    for key in ("text", "pair", "title", "view", "model"):
        value = row.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise InvalidText(f"{name}: {key} is {value!r}; it must be text")
    for key in ("layer", "head"):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InvalidText(f"{name}: {key} is {value!r}; it must be a number from 0")
    if row.get("text") is None:
        raise InvalidText(f'{name} has no "text"')
    if (row.get("layer") is None) != (row.get("head") is None):
        raise InvalidText(f"{name} names a layer or a head alone; name both or neither")
    view, views = row.get("view"), _views()
    if view is not None and view not in views:
        raise InvalidText(f"{name}: there is no view {view!r}; there are {', '.join(views)}")
    return GalleryText(**{key: value for key, value in row.items() if value is not None}, name=name)


def _views() -> tuple[str, ...]:
    """Views of one text by one model, which a page of a gallery can open on."""
    from unmask.explorer.page import VIEWS

    return tuple(view.id for view in VIEWS if view.needs == "text")
