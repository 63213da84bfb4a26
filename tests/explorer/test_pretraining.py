"""A step of pretraining in the explorer, beside the views of the models themselves."""

import pytest

import unmask
from tests.explorer.conftest import Asking
from tests.support.explorable import FakeModel
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.explorer import Api

TEXT = "the river bank was muddy, a text."


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    pretrained = tiny_bert("BertForPreTraining", max_position_embeddings=40)
    return [
        unmask.load(write_checkpoint(folder / "pretrained", pretrained, sentence=False)),
        unmask.load(write_checkpoint(folder / "plain", sentence=False)),
        FakeModel("detector", architectures=["ElectraForPreTraining"], model_type="electra"),
    ]


@pytest.fixture(scope="module")
def api(models):
    made = Api(models)
    yield Asking(made)
    made.close()


def test_masked_words_and_epochs(api, models):
    text_id = api.measured(TEXT, model=0)
    for epoch in (1, 2):
        found, view = (
            api.json(f"texts/{text_id}/training?epoch={epoch}"),
            models[0].masked_view(TEXT, epoch=epoch),
        )
        assert (found["head"], found["epoch"], found["pair"]) == ("masked", epoch, None)
        assert [(token["token"], token["corruption"]) for token in found["tokens"]] == [
            (one.token, one.corruption) for one in view.targets
        ]
        assert (found["loss"], found["baseline"]) == pytest.approx((view.loss, view.frequency_loss), abs=1e-5)
    epochs = models[0].mask_epochs(TEXT)
    assert [row["epochs"] for row in found["rows"]] == [
        [list(targets) for targets in row.epochs] for row in (epochs.static, epochs.dynamic)
    ]


def test_pairs_and_models_without_heads(api, models):
    text_id = api.measured("the river.", model=0, pair="a text.")
    pair, view = (
        api.json(f"texts/{text_id}/training")["pair"],
        models[0].sentence_pair_view("the river.", "a text."),
    )
    assert (pair["given"], pair["swapped"]) == pytest.approx(
        (view.given.probability, view.swapped.probability), abs=1e-5
    )
    assert pair["unrelated"] == pytest.approx(view.unrelated_probability, abs=1e-5)
    plain = api.json(f"texts/{api.measured(TEXT, model=1)}/training")
    assert (plain["head"], plain["tokens"], len(plain["rows"])) == (None, [], 2)


def test_words_replaced_by_the_reader(api, models):
    before = api.measured("the river bank", model=2)
    after = api.measured("the muddy bank", model=2)
    answer = api.json(f"texts/{after}/training?before={before}")
    view = models[2].replaced_view("the river bank", "the muddy bank")
    assert answer["head"] == "replaced"
    assert [token["probability"] for token in answer["tokens"]] == pytest.approx(
        [token.probability for token in view.tokens], abs=1e-5
    )
    assert [token["corruption"] == "random" for token in answer["tokens"]] == [
        token.replaced for token in view.tokens
    ]
