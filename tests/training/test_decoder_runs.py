"""DeBERTa's enhanced mask decoder trained from a run file, exported and loaded."""

import pytest
import torch
import transformers

import unmask
from tests.training.runs import Instead, write_run, write_texts
from unmask.errors import UnmaskError
from unmask.families import published_config
from unmask.spec.encoder import why_no_decoder
from unmask.text import Tokenizer
from unmask.training.objectives.language_modeling import EnhancedMaskedLanguageModel
from unmask.training.pretrain import pretrain
from unmask.weights.build import on_meta
from unmask.weights.write.new_checkpoint import new_checkpoint, with_tokenizer

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "position_biased_input": False,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
}
V1 = {"model_type": "deberta", **SIZES}
V2 = {"model_type": "deberta-v2", **SIZES, "conv_kernel_size": 3}
V3 = {
    "model_type": "deberta-v2",
    **SIZES,
    "position_buckets": 6,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
GENERATED = {"kind": "replaced", "preset": "deberta-v3"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    write_texts(folder)
    return folder


def run(texts, out, config, objective, **more):
    path = write_run(
        texts,
        out=out,
        steps=more.pop("steps", 2),
        model=more.pop("model", {"config": Instead(config or {})}),
        objective=Instead(objective),
        batch=Instead({"tokens": 128, "micro_tokens": 128}),
        evaluation={"every": 0, "tokens": 100},
        **more,
    )
    return pretrain(path)


@pytest.mark.parametrize("name", ["v1", "v2", "v3"])
def test_masked_words_are_learnt_through_the_decoder(name, texts, monkeypatch):
    seen = []
    forward = EnhancedMaskedLanguageModel.forward
    monkeypatch.setattr(
        EnhancedMaskedLanguageModel, "forward", lambda self, *a: (seen.append(1), forward(self, *a))[1]
    )
    config = {"v1": V1, "v2": V2, "v3": V3}[name] | {"enhanced_mask_decoder": True}
    result = run(texts, name, config, {"kind": "masked"})
    assert seen
    assert 3 < result.held_out["masked/loss"] < 5
    model = unmask.load(result.folder)
    assert why_no_decoder(model.spec) is None
    assert model.spec.embedding.positions.rows == 40
    assert model.fill("the river [MASK] was")
    # A second phase keeps the decoder without being told, and begins with its weights.
    again = run(
        texts,
        f"{name}-2",
        None,
        {"kind": "masked"},
        model=Instead({"start_from": f"{name}/model"}),
        tokenizer=None,
        optimizer={"learning_rate": 1e-9},
        steps=1,
    )
    before, after = (unmask.load(one.folder).encoder.state_dict() for one in (result, again))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[key], after[key], atol=1e-7) for key in before)


def test_transformers_reads_the_encoder_and_the_predictor(texts):
    result = run(texts, "theirs", V3 | {"enhanced_mask_decoder": True}, {"kind": "masked"})
    theirs, report = transformers.DebertaV2ForMaskedLM.from_pretrained(
        result.folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]  # the table of positions is one that they leave out
    # What it saves again has lost the table, and is read without one.
    theirs.save_pretrained(texts / "saved-by-them")
    for file in (result.folder).glob("token*"):
        (texts / "saved-by-them" / file.name).write_bytes(file.read_bytes())
    assert unmask.load(texts / "saved-by-them").spec.embedding.positions is None


def test_the_generator_of_replaced_tokens_predicts_through_it(texts):
    result = run(texts, "generated", V3 | {"enhanced_mask_decoder": True}, GENERATED)
    generator = unmask.load(result.folder / "generator").spec
    assert why_no_decoder(generator) is None
    assert [head.role for head in unmask.load(result.folder).spec.heads] == ["replaced"]
    plain = run(texts, "plain", V3, GENERATED)
    absolute = {key: value for key, value in V3.items() if key not in ("relative_attention", "pos_att_type")}
    made = run(
        texts, "absolute", absolute | {"position_biased_input": True, "share_att_key": False}, GENERATED
    )
    assert unmask.load(made.folder).spec.heads[0].reads == "tokens_and_first"
    assert why_no_decoder(unmask.load(plain.folder / "generator").spec) is not None


def test_a_published_shape_can_be_given_the_decoder(texts):
    files = {path.name: path.read_bytes() for path in (texts / "tokenizer").iterdir()}
    config = {**published_config("microsoft/deberta-v3-base"), "enhanced_mask_decoder": True}
    spec = new_checkpoint(with_tokenizer(config, Tokenizer.from_files(files)), files).spec
    assert why_no_decoder(spec) is None
    assert on_meta(spec).embedding.positions.weight.shape == (512, 768)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"legacy": False, "architectures": ["DebertaForMaskedLM"]},
            "set enhanced_mask_decoder = true in model",
        ),
        (
            {"enhanced_mask_decoder": True, "position_biased_input": True},
            "set position_biased_input to False",
        ),
    ],
)
def test_a_decoder_without_its_table_is_refused_with_the_key_that_asks_for_it(changes, says, texts):
    with pytest.raises(UnmaskError, match=says):
        run(texts, "refused", V1 | changes, {"kind": "masked"})
