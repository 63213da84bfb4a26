"""What is checked, and told, before anything of a run is made."""

import shutil

import pytest

import unmask
from tests.support.tiny import change_tensors, tiny_bert
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


def started(place, **changes):
    """The tokenizer, checkpoint and encoder that a run begins with, and what is said about them."""
    settings = read_run(write_run(place, **changes))
    heard = []
    tokenizer = run_tokenizer(settings, place, place / "run", heard.append)
    checkpoint, encoder = run_encoder(settings, place, tokenizer, heard.append)
    return checkpoint, encoder, heard


ROBERTA = {**BERT, "model_type": "roberta", "intermediate_size": 32, "max_position_embeddings": 34}
LONGFORMER = {
    "model_type": "longformer",
    "architectures": ["LongformerForMaskedLM"],
    "max_position_embeddings": 97,
    "attention_window": 8,
}


@pytest.fixture
def roberta(tmp_path):
    """A run's folder beside the model of a tiny RoBERTa of 33 positions after that of the padding id 0."""
    write_texts(tmp_path)
    pretrain(write_run(tmp_path, steps=1, model=Instead({"config": ROBERTA}), evaluation={"every": 0}))
    return tmp_path


def longer(place, start="run/model", **keys):
    model = Instead({"start_from": start, "repeat_positions": True, "config": {**LONGFORMER, **keys}})
    return started(place, model=model, tokenizer=Instead({}), out="longer")


def test_longformer_begins_with_roberta_and_its_positions_again_and_again(roberta):
    _, encoder, heard = longer(roberta)
    before = unmask.load(roberta / "run" / "model").trainable_encoder().state_dict()
    state = encoder.state_dict()
    table, first = state["embedding.positions.weight"], before["embedding.positions.weight"]
    assert len(first) == 34
    assert len(table) == 97
    assert table[0].equal(first[0])
    for row in range(1, 97):
        assert table[row].equal(first[1 + (row - 1) % 33])
    for kind in ("weight", "bias"):
        of_globals = state[f"layers.0.attention.globals.qkv.{kind}"]
        assert of_globals.equal(before[f"layers.0.attention.qkv.{kind}"])
    assert not any("globals" in sentence for sentence in heard)


def test_positions_are_repeated_only_into_a_longer_table(roberta):
    with pytest.raises(UnmaskError, match=r"this run has 34 rows and .* 34 rows; raise max_position"):
        longer(roberta, max_position_embeddings=34)
    model = Instead({"start_from": "run/model", "config": LONGFORMER})
    with pytest.raises(UnmaskError, match="keep the sizes of the checkpoint"):
        started(roberta, model=model, tokenizer=Instead({}), out="longer")
    with pytest.raises(UnmaskError, match="repeat_positions is true and start_from is not given"):
        started(roberta, model=Instead({"config": ROBERTA, "repeat_positions": True}))


def test_a_student_has_the_vocabulary_of_its_teacher(roberta, tmp_path_factory):
    teacher = tmp_path_factory.mktemp("teacher")
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 61,
        "max_position_embeddings": 64,
    }
    tiny_bert(**sizes).save_pretrained(teacher)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(roberta / "tokenizer" / name, teacher)
    config = Instead({"config": {"model_type": "distilbert", "dim": 24, "n_layers": 1, "n_heads": 2}})
    objective = Instead({"kind": "distillation", "teacher": str(teacher)})
    checkpoint, _, _ = started(roberta, model=config, objective=objective)
    assert checkpoint.spec.embedding.vocabulary == 61
    checkpoint, _, _ = started(roberta, model=config)
    assert checkpoint.spec.embedding.vocabulary == 64
