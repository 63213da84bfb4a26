"""The geometry of each level, and word senses."""

from collections.abc import Sequence

from unmask.errors import InvalidRequest
from unmask.explorer.api.analysis_schemas import Geometry, GeometryRequest, Senses, SensesRequest
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.context import AppContext
from unmask.explorer.sessions.models import ModelSlot
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.errors import problem_of
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.http.worker import Watch
from unmask.interpret.geometry.layers import geometry
from unmask.interpret.geometry.word_sense_sets import shipped_senses, shipped_words
from unmask.interpret.geometry.word_senses import SenseReport, word_senses

ASIDE = ("no", "yes")


def of_a_text(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/geometry?random=yes|no``; a text too short is an answer that says so."""
    random = request.choice("random", ASIDE) == "yes"
    special_N = reading.encoding.special

    def measure(states: Sequence[object], watch: Watch) -> Geometry:
        tokens = int((~special_N).sum())
        try:
            levels = geometry(states, special_N=special_N, watch=watch)
            twin = None
            if random:
                twin = geometry(
                    reading.random_levels(watch), special_N=special_N, shuffled=False, watch=watch
                )
        except InvalidRequest as error:
            return Geometry(tokens, (), None, problem_of(error))
        return Geometry(tokens, levels, twin, None)

    return json_answer(reading.analyse_levels(("geometry", random), measure))


def bank(context: AppContext, request: Request) -> Answer:
    """``GET bank?model=&word=``: the senses of a word that sentences are shipped of."""
    place, word = model_and_word(context, request)
    model = place.need_any()

    def measure(watch: Watch) -> SenseReport:
        return word_senses(
            model.encoder, model.tokenizer, shipped_senses(word), max_tokens=model.max_tokens, watch=watch
        )

    report = context.analyses.once(("bank", place.index, word), measure)
    return json_answer(Senses(place.name, word, shipped_words(), report))


def model_and_word(context: AppContext, request: Request) -> tuple[ModelSlot, str]:
    """The model, and the word with example sentences, that the query names."""
    word = request.choice("word", shipped_words())
    return context.models.at(request.number("model", 0, 0, len(context.models.places) - 1)), word


ROUTES = (
    Route.get(GeometryRequest, of_text(of_a_text)),
    Route.get(SensesRequest, bank),
)
