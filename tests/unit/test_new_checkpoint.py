"""Checkpoints that do not exist yet: made of a config, saved, read by us and by `transformers`."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import VOCABULARY
from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch, UnknownArchitecture, UnmaskError
from unmask.families import FAMILIES, family_of, find_architecture, published_config
from unmask.spec import role_of
from unmask.spec.config_keys import KeyGroup
from unmask.text import PackedBatch, Tokenizer
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder, with_tokenizer
from unmask.weights.write.save import save

FILES = {"vocab.txt": ("\n".join(VOCABULARY) + "\n").encode()}
TOKENIZER = Tokenizer.from_files(FILES)
SIZE = len(VOCABULARY)
IDS = [2, 9, 14, 33, 8, 21, 3]

BERT = {
    "model_type": "bert",
    "architectures": ["BertForPreTraining"],
    "vocab_size": SIZE + 3,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 17,
    "max_position_embeddings": 19,
    "initializer_range": 0.3,
}
ELECTRA = BERT | {"model_type": "electra", "embedding_size": 7}
MODERN = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "vocab_size": SIZE,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 4,
    "intermediate_size": 11,
    "local_attention": 4,
    "global_attn_every_n_layers": 3,
    "initializer_range": 0.3,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
DEBERTA = BERT | {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2ForMaskedLM"],
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "max_relative_positions": 19,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
}
ALBERT = BERT | {
    "model_type": "albert",
    "architectures": ["AlbertForPreTraining"],
    "embedding_size": 5,
    "num_hidden_groups": 1,
}
ROBERTA = BERT | {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "pad_token_id": 0}

CASES = {
    "bert": (BERT, {"masked": "prediction_logits", "next_sentence": "seq_relationship_logits"}),
    "bert untied": (BERT | {"tie_word_embeddings": False}, {"masked": "prediction_logits"}),
    "bert words": (BERT | {"architectures": ["BertForMaskedLM"]}, {"masked": "logits"}),
    "bert alone": (BERT | {"architectures": ["BertModel"]}, {}),
    "modernbert": (MODERN, {"masked": "logits"}),
    "discriminator": (ELECTRA | {"architectures": ["ElectraForPreTraining"]}, {"replaced": "logits"}),
    "generator": (ELECTRA | {"architectures": ["ElectraForMaskedLM"]}, {"masked": "logits"}),
    "deberta v2": (DEBERTA, {"masked": "logits"}),
    "albert": (ALBERT, {"masked": "prediction_logits", "sentence_order": "sop_logits"}),
    "roberta": (ROBERTA, {"masked": "logits"}),
    "classes of tokens": (
        BERT
        | {"architectures": ["BertForTokenClassification"], "id2label": {str(i): str(i) for i in range(5)}},
        {"tokens": "logits"},
    ),
}


def uneven(checkpoint):
    """A fresh encoder whose biases and norms are random too: at 0 and 1 a swapped pair would go unseen."""
    encoder = new_encoder(checkpoint, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return encoder.eval()


@pytest.mark.parametrize(("config", "places"), CASES.values(), ids=CASES)
def test_transformers_reads_what_is_saved(config, places, tmp_path):
    checkpoint = new_checkpoint(config, FILES)
    encoder = uneven(checkpoint)
    assert {role_of(head) for head in checkpoint.spec.heads} >= places.keys()
    save(encoder, checkpoint, tmp_path / "saved")

    model = unmask.load(tmp_path / "saved")
    assert model.spec == checkpoint.spec
    batch = PackedBatch.of_ids([IDS])
    with torch.inference_mode():
        x_TD = encoder.encode(batch)
        torch.testing.assert_close(build(model.checkpoint).encode(batch), x_TD, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.encoder.encode(batch), x_TD, rtol=1e-4, atol=1e-5)

        theirs, report = getattr(transformers, config["architectures"][0]).from_pretrained(
            tmp_path / "saved", output_loading_info=True
        )
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        assert not report["mismatched_keys"]
        ids = torch.tensor([IDS])
        states = theirs.eval().base_model(ids).last_hidden_state[0]
        torch.testing.assert_close(x_TD, states, rtol=1e-4, atol=1e-5)
        out = theirs(ids)
        for role, place in places.items():
            logits = encoder.logits(role, x_TD, batch.layout)
            torch.testing.assert_close(logits, getattr(out, place)[0].view_as(logits), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [family.published[0].name for family in FAMILIES if family.published])
def test_every_family_starts_from_its_published_config(name):
    family, published = find_architecture(name)
    wanted = published.pretraining or published.spec
    # Two families have tokenizers of other kinds: here BERT's is what the files say they hold.
    files = {**FILES, "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer"}'}
    checkpoint = new_checkpoint(with_tokenizer(published_config(name), TOKENIZER, multiple=16), files)
    assert checkpoint.family is family
    assert checkpoint.spec.heads == wanted.heads
    assert checkpoint.spec.layers == wanted.layers
    assert checkpoint.spec.pooler == wanted.pooler
    assert checkpoint.spec.embedding.vocabulary == -(-SIZE // 16) * 16
    assert checkpoint.spec.embedding.padding_id == 0
    assert checkpoint.unread_config == ()


def test_a_token_that_is_dropped_must_be_the_tokenizers_mask():
    config = {"model_type": "esm", "vocab_size": 80, "pad_token_id": 0, "position_embedding_type": "rotary"}
    config |= {"token_dropout": True, "architectures": ["EsmForMaskedLM"]}
    files = {**FILES, "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer"}'}
    assert new_checkpoint(config | {"mask_token_id": 4}, files).spec.embedding.token_dropout.mask_id == 4
    with pytest.raises(
        InvalidRequest, match="drops the token 7 and the tokenizer masks with 4; set mask_tok"
    ):
        new_checkpoint(config | {"mask_token_id": 7}, files)


def test_a_padding_id_that_is_not_said_is_the_tokenizers(tmp_path):
    assert "pad_token_id" not in MODERN
    checkpoint = new_checkpoint(MODERN, FILES)
    save(new_encoder(checkpoint), checkpoint, tmp_path / "saved")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "saved").pad_token_id == 0
    with pytest.raises(InvalidRequest, match="padding id is 7 and the tokenizer pads with 0"):
        new_checkpoint(MODERN | {"pad_token_id": 7}, FILES)


def test_a_padding_id_outside_the_vocabulary_is_refused():
    engine = json.loads(TOKENIZER.files["tokenizer.json"])
    engine["added_tokens"] = [token for token in engine["added_tokens"] if token["content"] != "[PAD]"]
    files = {"tokenizer.json": json.dumps(engine).encode()}
    assert new_checkpoint(MODERN, files).spec.embedding.padding_id is None
    with pytest.raises(InvalidRequest, match="padding id is 50283 and its vocabulary 69"):
        new_checkpoint(MODERN | {"pad_token_id": 50283}, files)


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        (BERT | {"hidden_sise": 9}, UnknownArchitecture, "hidden_sise"),
        (BERT | {"architectures": ["BertForDreaming"]}, UnknownArchitecture, "BertForTokenClassification"),
        (BERT | {"architectures": ["RobertaForMaskedLM"]}, UnknownArchitecture, "family bert"),
        (BERT | {"architectures": "BertForMaskedLM"}, UnknownArchitecture, "a list"),
        ({k: v for k, v in BERT.items() if k != "architectures"}, UnknownArchitecture, "None"),
        ({k: v for k, v in BERT.items() if k != "model_type"}, UnknownArchitecture, "model_type"),
        (BERT | {"vocab_size": SIZE - 1}, InvalidRequest, f"vocab_size to at least {SIZE}"),
        (BERT | {"num_attention_heads": 5}, UnknownArchitecture, "5 heads"),
        (MODERN | {"mlp_dropout": 0.1}, UnknownArchitecture, "mlp_dropout"),
        (MODERN | {"hidden_size": 15}, CorruptCheckpoint, "5 of 5 features"),
        (DEBERTA | {"conv_kernel_size": 3, "conv_groups": 5}, CorruptCheckpoint, "5 groups"),
    ],
)
def test_a_config_that_cannot_be_trained_is_refused(config, error, says):
    with pytest.raises(error, match=says):
        new_checkpoint(config, FILES)


def test_what_cannot_be_written_is_refused_before_training(monkeypatch):
    bert = family_of(BERT)
    wrong = KeyGroup(lambda *_: {}, lambda spec: {"intermediate_size": 16})
    forgetful = replace(bert, keys=(*bert.keys, wrong))
    for module in ("new_checkpoint", "save"):
        monkeypatch.setattr(f"unmask.weights.write.{module}.family_of", lambda _: forgetful)
    with pytest.raises(InvalidRequest, match="so that it loads as the same one"):
        new_checkpoint(BERT, FILES)


def test_there_are_no_weights_to_be_read():
    with pytest.raises(TensorMismatch, match="missing"):
        build(new_checkpoint(BERT, FILES))


def test_a_saved_one_is_read_back_whole(tmp_path):
    checkpoint = new_checkpoint(BERT, FILES, name="trial")
    assert checkpoint.source.name == "trial"
    save(new_encoder(checkpoint), checkpoint, tmp_path / "saved")
    again = read_checkpoint(Source(tmp_path / "saved", "trial"))
    assert again.spec == checkpoint.spec
    assert again.max_tokens == checkpoint.max_tokens == 19
    assert again.unread_config == ()
    assert again.config["intermediate_size"] == 17


def test_a_seed_decides_every_weight_and_leaves_the_global_generator():
    checkpoint = new_checkpoint(BERT, FILES)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (new_encoder(checkpoint, seed=seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embedding.words.weight"], other["embedding.words.weight"])
    assert new_encoder(checkpoint).training


WIDE = BERT | {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 8, "initializer_range": 0.02}
CUT_TO_2 = math.sqrt(1 - 2 * 2 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
"""Deviation of a standard normal number that is known to lie within 2 of its mean."""


@pytest.mark.parametrize(
    ("how", "inner", "outer", "most"),
    [
        ("normal", 0.02, 0.02, math.inf),
        ("megatron", 0.02 * CUT_TO_2, 0.02 / 4 * CUT_TO_2, 2.0),
        ("zero_out", 0.02, 0.0, math.inf),
    ],
)
def test_initializations(how, inner, outer, most):
    encoder = new_encoder(new_checkpoint(WIDE, FILES), how, seed=0)
    matrices = {name: one for name, one in encoder.named_parameters() if one.dim() > 1}
    ends = ("attention.out.weight", "feedforward.outer.weight")
    outputs = [one for name, one in matrices.items() if name.endswith(ends)]
    others = [one for name, one in matrices.items() if not name.endswith(ends)]
    assert len(outputs) == 2 * 8
    for group, std in ((outputs, outer), (others, inner)):
        numbers = torch.cat([matrix.detach().flatten() for matrix in group]).double()
        # Four standard errors of a deviation: a wrong factor (0.88, 1/4) is hundreds away.
        assert abs(numbers.std().item() - std) <= 4 * std / math.sqrt(2 * len(numbers))
        assert numbers.abs().max().item() <= most * (0.02 if group is others else 0.02 / 4) * (1 + 1e-6)
    assert all(
        torch.equal(parameter, torch.full_like(parameter, float(name.endswith("norm.weight"))))
        for name, parameter in encoder.named_parameters()
        if parameter.dim() == 1
    )


def test_with_outputs_of_0_pre_norm_layers_begin_as_the_identity():
    encoder = new_encoder(new_checkpoint(MODERN, FILES), "zero_out", seed=0).eval()
    layout = PackedBatch.of_ids([IDS]).layout
    ids_T = torch.tensor(IDS)
    with torch.inference_mode():
        embedded_TD = encoder.embedding(ids_T, torch.zeros_like(ids_T), layout)
        assert torch.equal(encoder(ids_T, layout), encoder.final_norm(embedded_TD))


def test_an_unknown_initialization_is_refused():
    with pytest.raises(InvalidRequest, match="normal, megatron, zero_out"):
        new_encoder(new_checkpoint(BERT, FILES), "xavier")


def test_an_unknown_shape_is_refused():
    with pytest.raises(UnmaskError, match="modernbert-base"):
        published_config("bert-huge")


def test_a_fresh_encoder_trains():
    """One step down the gradient lowers the loss of what it was taken for."""
    encoder = new_encoder(new_checkpoint(MODERN, FILES), seed=0)
    batch = PackedBatch.of_ids([IDS])
    words = torch.tensor(IDS)

    def loss():
        logits = encoder.logits("masked", encoder.encode(batch), batch.layout)
        return torch.nn.functional.cross_entropy(logits, words)

    before = loss()
    before.backward()
    with torch.no_grad():
        for parameter in encoder.parameters():
            assert parameter.grad is not None
            parameter.sub_(1e-3 * parameter.grad)
    assert np.isfinite(before.item())
    assert loss() < before
