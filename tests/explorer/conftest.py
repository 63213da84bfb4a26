"""An explorer without a server, over small random models."""

import json

import pytest

from tests.support.explorable import FakeModel
from tests.support.waiting import HANG_SECONDS
from unmask.explorer import Api
from unmask.explorer.wire.binary import unpack

TEXT = "The river bank was muddy, so another bank was 3."


class Asking:
    """Asks an API and reads its answers."""

    def __init__(self, api):
        self.api = api

    def raw(self, path, method="GET", body=None):
        return self.api.answer(method, path, body=b"" if body is None else json.dumps(body).encode())

    def json(self, path, method="GET", body=None, status=200):
        answer = self.raw(path, method, body)
        assert answer.status == status, answer.data
        return json.loads(answer.data) if answer.data else None

    def arrays(self, path):
        answer = self.raw(path)
        assert answer.status == 200, answer.data
        return unpack(answer.data)

    def problem(self, path, status, method="GET", body=None):
        error = self.json(path, method, body, status)["error"]
        assert error["sentence"]
        assert "\n" not in error["sentence"]
        return error

    def read(self, text=TEXT, **options):
        answer = self.json("texts", "POST", {"text": text, **options})
        return answer["id"], answer

    def measured(self, text=TEXT, **options):
        text_id, _ = self.read(text, **options)
        assert self.api.finish(text_id, HANG_SECONDS)
        state = self.json(f"texts/{text_id}/state")
        assert state["phase"] == "done", state
        return text_id


@pytest.fixture(scope="session")
def model():
    return FakeModel()


@pytest.fixture(scope="session")
def other():
    """Another model without a head for words."""
    return FakeModel("other", seed=1, architectures=["BertModel"], num_hidden_layers=2)


@pytest.fixture(scope="session")
def asking(model, other):
    api = Api([model, other])
    yield Asking(api)
    api.close()
