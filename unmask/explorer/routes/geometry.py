"""The shape of each level's vectors, and the laboratory of senses."""

from unmask.errors import InvalidRequest
from unmask.explorer.findings import Geometry, Senses
from unmask.explorer.reading import Reading
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.workplace import Workplace
from unmask.http.errors import problem_of
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.http.worker import Watch
from unmask.see import AttentionView
from unmask.see.geometry.layers import geometry
from unmask.see.geometry.reading import random_twin
from unmask.see.geometry.sense_sets import shipped_senses, shipped_words
from unmask.see.geometry.senses import SenseReport, senses
from unmask.see.recording import Recording

ASIDE = ("no", "yes")


def of_a_text(reading: Reading, request: Request) -> Answer:
    """``GET texts/{id}/geometry?random=yes|no``; a text too short is an answer that says so."""
    random = request.choice("random", ASIDE) == "yes"
    special_N = reading.encoding.special

    def measure(view: AttentionView, watch: Watch) -> Geometry:
        tokens = int((~special_N).sum())
        recording = view.recording
        try:
            levels = geometry(_levels(recording), special_N=special_N, watch=watch)
            twin = None
            if random:
                other = Recording.of(random_twin(recording.encoder), recording.encoding, watch=watch)
                twin = geometry(_levels(other), special_N=special_N, shuffled=False, watch=watch)
        except InvalidRequest as error:
            return Geometry(tokens, (), None, problem_of(error))
        return Geometry(tokens, levels, twin, None)

    return json_answer(reading.analyse(("geometry", random), measure))


def bank(workplace: Workplace, request: Request) -> Answer:
    """``GET bank?model=&word=``: the senses of a word that sentences are shipped of."""
    words = shipped_words()
    word = request.choice("word", words)
    place = workplace.models.at(request.number("model", 0, 0, len(workplace.models.places) - 1))
    model = place.need()

    def measure(watch: Watch) -> SenseReport:
        return senses(
            model.encoder, model.tokenizer, shipped_senses(word), max_tokens=model.max_tokens, watch=watch
        )

    report = workplace.analyses.once(("bank", place.index, word), measure)
    return json_answer(Senses(place.name, word, words, report))


def _levels(recording: Recording) -> list[object]:
    """States of every level; the last as the encoder returns it."""
    return [*recording.states[:-1], recording.final_ND]


ROUTES = (
    Route("GET", "texts/*/geometry", of_text(of_a_text)),
    Route("GET", "bank", bank),
)
