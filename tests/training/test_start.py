"""What is checked, and told, before anything of a run is made."""

import pytest

from tests.support.tiny import change_tensors
from tests.training.runs import Heard, Instead, same_tensors, write_run, write_texts
from unmask.errors import UnmaskError
from unmask.training.pretrain import pretrain, read_run
from unmask.training.pretrain.run import read_text
from unmask.training.pretrain.start import run_encoder, run_inputs, run_tokenizer
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks

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


def test_the_first_weights_are_drawn_by_the_seed(tmp_path):
    write_texts(tmp_path)
    drawn = []
    for seed in (1, 1, 2):
        settings = read_run(write_run(tmp_path, seed=seed))
        tokenizer = run_tokenizer(settings, tmp_path, tmp_path / "run", print)
        drawn.append(run_encoder(settings, tmp_path, tokenizer, print)[1].state_dict())
    same_tensors(drawn[0], drawn[1])
    name = "embedding.words.weight"
    assert not drawn[0][name].equal(drawn[2][name])


def test_held_out_sources_share_the_tokens_of_an_evaluation(tmp_path):
    write_texts(tmp_path)
    read = {}
    for names in (["held"], ["held", "first"]):
        sources = [
            {"name": f"{name}-out", "files": [f"{name}.txt"], "format": "paragraphs", "max_tokens": 30}
            for name in names
        ]
        settings = read_run(write_run(tmp_path, data={"held_out": sources}, evaluation={"tokens": 400}))
        tokenizer = run_tokenizer(settings, tmp_path, tmp_path / "run", print)
        text = read_text(
            settings, tmp_path, tokenizer, Ranks(), extra_tokens=2, limit=64, callback=Callback()
        )
        read[len(names)] = sum(len(chunk.ids) + 2 for chunks in text.held_out for chunk in chunks)
    assert 400 <= read[1] <= 432
    assert 400 <= read[2] <= 464  # 200 of each, and the end of its last chunk


def test_a_tokenizer_of_other_settings_is_trained_again_before_the_first_checkpoint(tmp_path):
    write_texts(tmp_path)
    sizes = []
    for vocabulary, begun in ((50, False), (60, False), (50, True)):
        table = Instead({"train": "wordpiece", "vocabulary": vocabulary})
        settings = read_run(write_run(tmp_path, tokenizer=table))
        tokenizer = run_tokenizer(settings, tmp_path, tmp_path / "run", print, begun=begun)
        sizes.append(tokenizer.vocabulary_size)
    assert sizes == [50, 60, 60]


def test_a_run_knows_the_checkpoints_that_it_reads_again(tmp_path, tiny_copy):
    write_texts(tmp_path)
    objective = Instead({"kind": "distillation", "teacher": str(tiny_copy)})
    settings = read_run(write_run(tmp_path, objective=objective))
    (before,) = run_inputs(settings, tmp_path).items()
    assert before[0] == "weights, config or tokenizer of the teacher"
    assert run_inputs(settings, tmp_path) == dict([before])
    change_tensors(tiny_copy, lambda tensors: next(iter(tensors.values())).add_(1))
    assert run_inputs(settings, tmp_path)[before[0]] != before[1]
