"""What a head of the model predicts for the text."""

from unmask.explorer.api.task_predictions import prediction_of
from unmask.explorer.api.task_schemas import TaskPrediction, TaskPredictionRequest
from unmask.explorer.routes.queries import need_classifier
from unmask.explorer.routes.route import Route, of_text
from unmask.explorer.sessions.text_session import TextSession
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.interpret import AttentionView


def prediction(reading: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/prediction``."""
    need_classifier(reading)

    def predict(view: AttentionView) -> TaskPrediction:
        return prediction_of(view.cache, reading.encoding, reading.place.name)

    return json_answer(reading.ask(predict))


ROUTES = (Route.get(TaskPredictionRequest, of_text(prediction)),)
