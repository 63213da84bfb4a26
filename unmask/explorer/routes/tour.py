"""The views that need no text: the guided tour and its experiments, and how cost grows with length."""

from dataclasses import asdict, dataclass

from unmask.bench.scaling.settings import ScalingSettings
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.sessions.background import WallState
from unmask.explorer.tour.chapters import chapters as every_chapter
from unmask.explorer.tour.chapters import run
from unmask.explorer.wire.page_request import Json, PageRequest
from unmask.http.errors import Refused
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer

MOST_INDEX = 10_000


@dataclass(frozen=True)
class TourRequest(PageRequest):
    """The chapters of the tour."""

    path = "tour"
    answer = Json
    saved_in = ("tour",)


@dataclass(frozen=True)
class ChapterRequest(PageRequest):
    """The experiments of a chapter on a text; ``model`` is the number of the preferred one."""

    path = "tour/{chapter}"
    answer = Json

    chapter: str
    model: int
    text: str
    layer: int | None = None
    head: int | None = None
    token: int | None = None


def chapters(context: AppContext, request: Request) -> Answer:
    """``GET tour``."""
    return json_answer({"chapters": [asdict(chapter) for chapter in every_chapter()]})


def chapter(context: AppContext, request: Request) -> Answer:
    """``GET tour/{chapter}?model=&text=&layer=&head=&token=``."""
    preferred = context.models.at(request.number("model", 0, 0, len(context.models.places) - 1))
    models = [preferred.need(), *context.models.ready()]
    chosen = {
        name: request.number(name, None, 0, MOST_INDEX) if request.query.get(name) else None
        for name in ("layer", "head", "token")
    }
    text, name = request.query.get("text", ""), request.parts[0]
    key = ("tour", name, text, preferred.index, *chosen.values())
    return json_answer(context.analyses.once(key, lambda watch: run(name, models, text, **chosen)))


MOST_SECONDS = 3600.0
LONGEST = 65_536


@dataclass(frozen=True)
class WallRequest(PageRequest):
    """How far the length-scaling measurement is."""

    path = "wall"
    answer = WallState
    saved_in = ("wall",)


def state(context: AppContext, request: Request) -> Answer:
    """``GET wall``."""
    return json_answer(context.wall.state())


def start(context: AppContext, request: Request) -> Answer:
    """``POST wall {model, ways?, lengths?, longest?, seconds?, repeats?}``."""
    body = request.json()
    names = {"model", "ways", "lengths", "longest", "seconds", "repeats"}
    if body.keys() - names:
        name = sorted(body.keys() - names)[0]
        raise Refused(400, "BadRequest", f"{name!r} is unknown here; there are {', '.join(sorted(names))}")
    model = context.models.at(_whole(body.get("model", 0), "model", 0, 1000)).need()
    seconds = body.get("seconds", 120)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds <= MOST_SECONDS:
        raise Refused(400, "BadRequest", f"seconds must be a number from 1 to {MOST_SECONDS:,.0f}")
    ways, lengths, longest = body.get("ways", []), body.get("lengths", []), body.get("longest")
    if not isinstance(ways, list) or not all(isinstance(way, str) for way in ways):
        raise Refused(400, "BadRequest", "ways must be a list of names")
    if not isinstance(lengths, list):
        raise Refused(400, "BadRequest", "lengths must be a list of numbers of tokens")
    settings = ScalingSettings(
        model=str(model.checkpoint.source.folder),
        ways=tuple(ways),
        lengths=tuple(_whole(length, "a length", 1, LONGEST) for length in lengths),
        longest=None if longest is None else _whole(longest, "longest", 1, LONGEST),
        seconds=float(seconds),
        repeats=_whole(body.get("repeats", 5), "repeats", 1, 100),
        dtype=model.dtype,
    )
    return json_answer(context.wall.start(settings))


def stop(context: AppContext, request: Request) -> Answer:
    """``DELETE wall``: stop; measured points are kept."""
    context.wall.stop()
    return json_answer(context.wall.state())


def _whole(value: object, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Refused(400, "BadRequest", f"{name} must be a whole number from {low:,} to {high:,}")
    return value


ROUTES = (
    Route.get(WallRequest, state),
    Route("POST", "wall", start),
    Route("DELETE", "wall", stop),
    Route.get(TourRequest, chapters),
    Route.get(ChapterRequest, chapter),
)
