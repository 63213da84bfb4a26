"""Length scaling: start, state, stop."""

from dataclasses import dataclass

from unmask.bench.scaling.settings import ScalingSettings
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.sessions.background import WallState
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.errors import Refused
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer

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


ROUTES = (Route.get(WallRequest, state), Route("POST", "wall", start), Route("DELETE", "wall", stop))
