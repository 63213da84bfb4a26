"""What is checked, and told, before anything of a run is made."""

import pytest

from tests.training.runs import Heard, Instead, write_run, write_texts
from unmask.errors import UnmaskError
from unmask.training.pretrain import pretrain

TRAINED = Instead({"train": "wordpiece", "vocabulary": 5000})
BERT = {"model_type": "bert", "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
MODERN = {**BERT, "model_type": "modernbert"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"objective": Instead({"kind": "dreaming"})}, "objective.kind is 'dreaming'"),
        ({"objective": Instead({"kind": "masked", "rate": 2.0})}, "rate"),
        ({"model": Instead({"architecture": "bert-huge"})}, "no architecture 'bert-huge'"),
        ({"model": Instead({"config": {**BERT, "hidden_sise": 3}})}, "hidden_sise"),
        ({"model": Instead({"config": {**BERT, "num_attention_heads": 5}})}, "5 heads"),
        (
            {"model": Instead({"config": {**MODERN, "max_position_embeddings": 0}})},
            "max_position_embeddings is 0",
        ),
        (
            {"model": Instead({"config": {**MODERN, "max_position_embeddings": -1}})},
            "max_position_embeddings is -1",
        ),
        ({"data": {"held_out": [{"name": "a", "files": ["no.txt"]}]}}, "no such file"),
        ({"data": {"held_out": [{"name": "a", "files": ["run.toml"]}]}}, "set format"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_its_tokenizer_is_trained(changes, says, tmp_path):
    write_texts(tmp_path)
    heard = Heard()
    with pytest.raises(UnmaskError, match=says):
        pretrain(write_run(tmp_path, tokenizer=TRAINED, **changes), callback=heard)
    assert heard.sentences == []


def test_chunks_longer_than_the_config_allows_are_refused(tmp_path):
    write_texts(tmp_path)
    model = Instead({"config": {**MODERN, "max_position_embeddings": 10}})
    with pytest.raises(UnmaskError, match="config allows at most 10; lower max_tokens"):
        pretrain(write_run(tmp_path, model=model))


def test_a_smaller_vocabulary_than_was_asked_for_is_told(tmp_path):
    write_texts(tmp_path)
    heard = Heard()
    pretrain(write_run(tmp_path, steps=1, tokenizer=TRAINED, evaluation={"every": 0}), callback=heard)
    told = next(sentence for sentence in heard.sentences if "instead of 5,000" in sentence)
    assert told.startswith("the tokenizer has ")
