"""Analyses in progress: how far they are, and stopping them."""

from unmask.explorer.api.analysis_schemas import AnalysesRequest, TextAnalysesRequest, Underway, UnderwayList
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.analyses import Analyses, name_of
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer


def of_a_text(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/analyses``."""
    return json_answer(_underway(reading.analyses))


def of_no_text(context: AppContext, request: Request) -> Answer:
    """``GET analyses``."""
    return json_answer(_underway(context.analyses))


def stop_of_a_text(reading: TextSession, request: Request) -> Answer:
    """``POST texts/{id}/analyses/{name}/stop``: those of that name; what is measured of the text stays."""
    reading.analyses.stop(request.parts[1])
    return json_answer(_underway(reading.analyses))


def stop_of_no_text(context: AppContext, request: Request) -> Answer:
    """``POST analyses/{name}/stop``."""
    context.analyses.stop(request.parts[0])
    return json_answer(_underway(context.analyses))


def _underway(analyses: Analyses) -> UnderwayList:
    return UnderwayList(
        tuple(
            Underway(
                name=name_of(key),
                phase=job.phase,
                what=job.what,
                done=job.done,
                total=job.total,
                seconds=round(job.seconds, 1),
                eta_s=None if job.eta_seconds is None else round(job.eta_seconds, 1),
            )
            for key, job in analyses.underway()
        )
    )


ROUTES = (
    Route.get(TextAnalysesRequest, of_text(of_a_text)),
    Route.get(AnalysesRequest, of_no_text),
    Route("POST", "texts/*/analyses/*/stop", of_text(stop_of_a_text)),
    Route("POST", "analyses/*/stop", stop_of_no_text),
)
