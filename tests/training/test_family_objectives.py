"""Every family with every objective: it trains, is saved and loads as it was, or is refused before a step."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from tests.support.specs import POST_NORM
from tests.training.runs import Instead, write_run, write_texts
from unmask.errors import UnmaskError
from unmask.families import FAMILIES, published_config
from unmask.families.native import to_config
from unmask.spec import Classifier, MaskedLM, Pooler, Transform
from unmask.text import PackedBatch
from unmask.training.objectives.interface import Objective
from unmask.training.pretrain import pretrain
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder
from unmask.weights.write.save import save

pytestmark = pytest.mark.long

SIZES = {
    **dict.fromkeys(("hidden_size", "dim", "n_embd", "pooler_hidden_size", "d_model"), 12),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads", "n_head", "num_heads"), 2),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "n_inner", "d_ff"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_trained_positions", "max_length"), 40),
    **dict.fromkeys(("attention_head_size", "dim_head", "head_dim", "d_kv"), 6),
    "embedding_size": 8,
    "input_embedding_size": 8,
    "output_embedding_size": 10,
    "mask_token_id": 4,
    "layer_types": ["full_attention", "sliding_attention"],
    "attention_window": [4, 4],
    "alibi_starting_size": 40,
    "conv_kernel_size": 0,
    "block_size": 2,
    "num_random_blocks": 1,
    "nb_features": 7,
    "intra_bottleneck_size": 4,
    "true_hidden_size": 4,
}
WITHOUT_CLASS = {"performer": "bert", "linear": "bert"}
"""Whose published sizes are taken for a family that has published none."""

UNRELEASED = {
    "ultrabert": (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "layer_types",
    )
}
"""Families without a published size, and the keys that make a small one."""

OBJECTIVES = {
    "masked": {"kind": "masked"},
    "next_sentence": {"kind": "sentence_pairs"},
    "sentence_order": {"kind": "sentence_pairs", "task": "sentence_order"},
    "replaced": {"kind": "replaced"},
    "distillation": {"kind": "distillation", "teacher": "teacher"},
}

NAMES = [family.name for family in FAMILIES]
QUESTIONS = {
    "next_sentence": {
        *("bert", "ernie", "megatron_bert", "mobilebert", "bigbird", "jinabert", "jinabert-code"),
        *("performer", "linear", "unmask"),
    },
    "sentence_order": {"albert", "unmask"},
}
"""The families with a class that is trained on a question about two segments; the others are refused."""
REFUSED = (
    {
        (family, question): f"heads of the roles masked, {question}, and the family {family} has no class"
        for question, families in QUESTIONS.items()
        for family in set(NAMES) - families
    }
    | {
        (family, objective): f"heads of the roles masked, and the family {family} has no class"
        for family in ("t5", "privacy_filter", "embedding_gemma2")  # words are a decoder's, or of no class
        for objective in ("masked", "distillation")
    }
    | {("qwen3", objective): "attention is causal" for objective in ("masked", "replaced", "distillation")}
    | {("static", objective): "the family static has no class|needs layers" for objective in OBJECTIVES}
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts, a tokenizer, and a teacher."""
    folder = tmp_path_factory.mktemp("pairs")
    write_texts(folder)
    files = {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}
    config = {**config_of("bert", "masked"), "vocab_size": 64, "architectures": ["BertForMaskedLM"]}
    teacher = new_checkpoint(config, files)
    save(new_encoder(teacher, seed=1), teacher, folder / "teacher")
    return folder


def config_of(family, objective):
    """Tiny sizes of a family; the class follows from the objective."""
    if family == "unmask":
        return native(objective)
    if family == "static":
        return {"model_type": "model2vec"}
    if family in UNRELEASED:
        return {"model_type": family, **{key: SIZES[key] for key in UNRELEASED[family]}}
    found = next(one for one in FAMILIES if one.name == WITHOUT_CLASS.get(family, family))
    config = published_config(found.published[0].name)
    config = {key: SIZES.get(key, value) for key, value in config.items() if key != "embedding_size"}
    if family in ("albert", "electra", "convbert", "mobilebert"):
        config["embedding_size"] = SIZES["embedding_size"]
    config.pop("per_layer_config", None)  # of layers that the tiny encoder does not have
    if family == "convbert":  # the other of this name is DeBERTa's, without a convolution
        config["conv_kernel_size"] = 5
    if family in WITHOUT_CLASS:
        config["attention_probs_dropout_prob"] = 0.0
        config["model_type"] = next(one for one in FAMILIES if one.name == family).model_types[0]
    del config["vocab_size"], config["pad_token_id"]  # the tokenizer's
    return {key: value for key, value in config.items() if key != "architectures"}


def native(objective):
    """In unmask's own format the config holds the heads."""
    words = MaskedLM(Transform(POST_NORM.embedding.width, "gelu", POST_NORM.layers[0].norm))
    heads = {
        "replaced": (),
        "next_sentence": (words, Classifier("next_sentence", 2, "pooler")),
        "sentence_order": (words, Classifier("sentence_order", 2, "pooler")),
    }.get(objective, (words,))
    pooler = Pooler() if len(heads) == 2 else None
    return to_config(replace(POST_NORM, pooler=pooler, heads=heads))


def without_none(value):
    """TOML has no null; what is left out has its default."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, list) else value


def trained(texts, monkeypatch, family, objective, out=None):
    """The folder of a run of two steps, and the objective that it trained."""
    made = []
    begin = Objective.__init__
    monkeypatch.setattr(Objective, "__init__", lambda self: (begin(self), made.append(self))[0])
    path = write_run(
        texts,
        steps=2,
        out=out or f"{family}-{objective}",
        model={"config": Instead(without_none(config_of(family, objective)))},
        data={"held_out": []},
        objective=Instead(OBJECTIVES[objective]),
        batch=Instead({"tokens": 128, "micro_tokens": 128}),
        evaluation={"every": 0},
    )
    return pretrain(path).folder, made[-1]


def states(encoder, layout_of):
    """Last hidden states and every head's logits that reads them."""
    encoder = encoder.eval()
    with torch.inference_mode():
        x_TD = encoder.encode(layout_of)
        return [x_TD, *(encoder.logits(role, x_TD, layout_of.layout) for role in encoder.heads)]


@pytest.mark.parametrize(("family", "objective"), list(itertools.product(NAMES, OBJECTIVES)))
def test_a_pair_trains_and_loads_again_or_is_refused(family, objective, texts, monkeypatch, tmp_path):
    says = REFUSED.get((family, objective))
    if says is not None:
        with pytest.raises(UnmaskError, match=says):
            trained(texts, monkeypatch, family, objective)
        assert not (texts / f"{family}-{objective}" / "log.jsonl").exists()
        return
    folder, made = trained(texts, monkeypatch, family, objective)
    batch = PackedBatch.of_ids([np.array([2, 9, 30, 41, 12, 3]), np.array([2, 17, 3])])
    for name, encoder in made.encoders().items():
        checkpoint = read_checkpoint(Source(folder / name, "made"))
        assert checkpoint.spec == encoder.spec
        assert checkpoint.unread_config == ()
        again = build(checkpoint)
        read = again.state_dict()
        assert all(torch.equal(tensor, read[name]) for name, tensor in encoder.state_dict().items())
        for mine, theirs in zip(states(encoder, batch), states(again, batch), strict=True):
            torch.testing.assert_close(mine, theirs)
        save(again, checkpoint, tmp_path / f"again{name}")
        for file in ("model.safetensors", "config.json"):
            assert (tmp_path / f"again{name}" / file).read_bytes() == (folder / name / file).read_bytes()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_transformers_reads_the_encoder_of_a_detector(family, texts, monkeypatch):
    folder, made = trained(texts, monkeypatch, family, "replaced")
    theirs, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert {name.split(".")[0] for name in report["unexpected_keys"]} == {"discriminator_predictions"}
    assert {name.split(".")[0] for name in report["missing_keys"]} <= {"pooler"}
    ids = [2, 9, 30, 41, 12, 3]
    with torch.inference_mode():
        ours = made.encoders()[""].eval().encode(PackedBatch.of_ids([np.array(ids)]))
        other = theirs.eval()(torch.tensor([ids])).last_hidden_state[0]
    torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_an_encoder_that_could_not_be_saved_is_refused_before_the_first_step(texts, monkeypatch):
    """A head that the family's files have no name for."""
    monkeypatch.setattr("unmask.families.family.has_detector", lambda *_: True)
    with pytest.raises(UnmaskError, match=r"family bert cannot be saved.*heads\.replaced"):
        trained(texts, monkeypatch, "bert", "replaced", out="unnamed")
    assert not (texts / "unnamed" / "log.jsonl").exists()


def test_a_class_without_the_trained_heads_is_refused_by_the_name_of_the_right_one(texts, monkeypatch):
    config = {**config_of("bert", "masked"), "architectures": ["BertModel"]}
    path = write_run(texts, out="wrong", model={"config": Instead(config)})
    with pytest.raises(UnmaskError, match="name BertForMaskedLM, or leave architectures out"):
        pretrain(path)
