"""What is about a model and no text that was read: the guided tour, and the roofline of attention."""

from dataclasses import asdict, dataclass

from unmask.bench.speed.roofline import Roofline, roofline
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.tour.chapters import chapters as every_chapter
from unmask.explorer.tour.chapters import run
from unmask.explorer.wire.page_request import Json, PageRequest
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


@dataclass(frozen=True)
class RooflineRequest(PageRequest):
    """The roofline of the attention of a model, measured once; ``model`` is its number."""

    path = "roofline"
    answer = Roofline
    saved_in = ("roofline",)

    model: int = 0


def measured_roofline(context: AppContext, request: Request) -> Answer:
    """``GET roofline?model=``."""
    place = context.models.at(request.number("model", 0, 0, len(context.models.places) - 1))
    model = place.need()
    return json_answer(context.analyses.once(("roofline", place.index), lambda watch: roofline(model)))


ROUTES = (
    Route.get(RooflineRequest, measured_roofline),
    Route.get(TourRequest, chapters),
    Route.get(ChapterRequest, chapter),
)
