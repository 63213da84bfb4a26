"""openai/privacy-filter as a whole: tags, training, kernels, files and refusals. Outputs and gradients beside
`transformers` are in the contracts (`cases/privacy_filter.py`) and in `test_family_gradients`."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import OpenAIPrivacyFilterForTokenClassification

import unmask
from tests.contracts.cases.privacy_filter import SMALL
from tests.support.specs import SINKS, random_encoder
from tests.support.tiny import VOCABULARY, write_tokenizer
from unmask.encoder.encoder import Encoder
from unmask.encoder.layers.parts import balance_loss
from unmask.engines.export.padded import why_not_padded
from unmask.engines.native.program import unsupported_encoder
from unmask.errors import InvalidRequest, KernelError, TensorMismatch, UnknownArchitecture
from unmask.explorer.sessions.described import _kind
from unmask.families import family_of, find_architecture
from unmask.families.privacy_filter import LABELS, TYPES
from unmask.kernels import AttentionBias
from unmask.kernels.sdpa import MaskedSdpaKernel
from unmask.kernels.tiled.kernel import TiledKernel
from unmask.spec import FullAttention, PlainFeedForward, SlidingWindowGlobal
from unmask.spec.attention import SlidingWindow, SoftmaxAttention
from unmask.spec.shapes import parameter_count
from unmask.text import PackedBatch
from unmask.training.objectives.specs import DistillationSpec, relation_heads
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.adapter_export import LowRank, adapter_tensors, add_low_rank

TEXT = "the river bank was muddy"


def write_model(folder, **config):
    """A tiny tagger as `transformers` writes it, whose tokenizer has its words."""
    torch.manual_seed(3)
    settings = SMALL | {"vocab_size": len(VOCABULARY)} | config
    config_class = OpenAIPrivacyFilterForTokenClassification.config_class
    OpenAIPrivacyFilterForTokenClassification(config_class(**settings)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def change_score(folder, label):
    """Every token has this label."""
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"].zero_()
    tensors["score.bias"] = 20 * torch.nn.functional.one_hot(torch.tensor(LABELS.index(label)), 33).float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_tags_are_read_from_its_scheme(tmp_path):
    folder = write_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert tuple(config["id2label"].values()) == LABELS
    for key in ("id2label", "label2id"):
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    change_score(folder, "S-private_email")
    (tagging,) = unmask.load(folder).tag([TEXT])
    assert (tagging.scheme, tagging.has_entities) == ("BIOES", True)
    assert {entity.label for entity in tagging.entities} == {"private_email"}
    assert [entity.text for entity in tagging.entities] == TEXT.split()
    change_score(folder, "I-secret")  # no entity may begin or end with it
    model = unmask.load(folder)
    (tagging,) = model.tag([TEXT])
    ((entity),) = tagging.entities
    assert (entity.label, entity.text) == ("secret", TEXT)
    assert [word.label for word in tagging.words] == ["B-secret", *["I-secret"] * 3, "E-secret"]
    model.save(tmp_path / "saved")
    assert unmask.load(tmp_path / "saved").tag([TEXT]) == [tagging]
    assert json.loads((tmp_path / "saved/config.json").read_text())["id2label"]["4"] == "S-account_number"
    assert len(TYPES) == 8


def test_published_sizes_and_defaults():
    spec = find_architecture("privacy-filter")[1].spec
    assert (len(spec.layers), spec.width, spec.embedding.vocabulary) == (8, 640, 200_064)
    assert family_of({"model_type": "openai_privacy_filter"}).from_config(pad_token_id=199_999) == spec
    yarn = spec.layers[0].mixer.position.yarn
    assert (yarn.factor, yarn.trained_tokens, yarn.whole_pairs) == (32.0, 4096, False)
    per_expert = 640 * 1280 + 1280 + 640 * 640 + 640
    attention = 640 * (14 + 2 * 2) * 64 + (14 + 2 * 2) * 64 + 14 * 64 * 640 + 640 + 14
    layer = 128 * per_expert + 128 * 640 + 128 + attention + 2 * 640
    assert parameter_count(spec) == 8 * layer + 200_064 * 640 + 640


def gradients(kernel, unattended=False):
    encoder = random_encoder(SINKS, dtype=torch.float64)
    encoder.kernel = kernel
    ids = [list(range(5, 5 + length)) for length in (1, 9, 30, 9)]
    batch = PackedBatch.of_ids(ids)
    if unattended:
        marks_T = np.zeros(batch.layout.token_count, dtype=bool)
        marks_T[[3, 20, 21]] = True
        batch = replace(batch, layout=replace(batch.layout, unattended_T=marks_T))
    x_TD = encoder.encode(batch)
    (x_TD * torch.linspace(-1, 1, x_TD.numel(), dtype=torch.float64).view_as(x_TD)).sum().backward()
    return x_TD.detach(), {name: parameter.grad for name, parameter in encoder.named_parameters()}


@pytest.mark.parametrize(("kernel", "unattended"), [("tiled", False), ("rows", False), (None, True)])
def test_every_kernel_gives_the_gradients_of_the_definition(kernel, unattended):
    x_TD, expected = gradients("reference", unattended)
    y_TD, found = gradients(kernel, unattended)
    torch.testing.assert_close(y_TD, x_TD, rtol=0, atol=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-11, msg=name)
    assert all(found[f"layers.{layer}.attention.sinks"].abs().min() > 1e-6 for layer in range(2))


def test_low_precision_stays_near(tmp_path):
    folder = write_model(tmp_path / "model")
    exact, half = (
        torch.tensor(unmask.load(folder, dtype=dtype).hidden_states([TEXT])[0].tolist())
        for dtype in ("float32", "bfloat16")
    )
    cosines = torch.cosine_similarity(exact, half)
    assert cosines.min() > 0.99


def test_it_learns_with_the_balance_of_its_experts():
    encoder = random_encoder(SINKS).train()
    batch = PackedBatch.of_ids([list(range(5, 40)), list(range(20, 30))])
    wanted_TD = torch.randn(45, SINKS.width, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(encoder.parameters(), 0.01)
    losses = []
    for _ in range(25):
        loss = (encoder.encode(batch) - wanted_TD).square().mean()
        balance = balance_loss(encoder)
        assert balance is not None
        (loss + balance).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_files_of_other_shapes_are_refused_by_name(tmp_path):
    folder = write_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    assert tensors[name].shape == (5, 20, 22)
    tensors[name] = tensors[name].mT.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TensorMismatch, match=f"{name} has shape 5 x 22 x 20 and .* asks for 5 x 20 x 22"):
        unmask.load(folder)


def test_the_page_says_that_rows_sum_to_less_than_1():
    kinds = [_kind(layer.mixer) for layer in SINKS.layers]
    assert kinds == [
        f"{pattern}, rows sum to less than 1 (attention sinks)" for pattern in ("window 3", "full attention")
    ]


def test_what_does_not_know_sinks_refuses_them():
    plain = [replace(layer, feedforward=PlainFeedForward(8, "gelu")) for layer in SINKS.layers]
    alone = replace(SINKS, layers=tuple(plain))
    assert "attention with sinks" in unsupported_encoder(alone)
    assert "attention sinks" in why_not_padded(alone)
    with pytest.raises(KernelError, match="sdpa gives no log-sum-exp"):
        Encoder(SINKS, kernel="sdpa").encode(PackedBatch.of_ids([[5, 6, 7]]))
    with pytest.raises(InvalidRequest, match="attention sinks, whose attention is not compared"):
        relation_heads(alone, alone, 1, 1, DistillationSpec(attention=1.0))
    own = SoftmaxAttention(2, 4, pattern=SlidingWindowGlobal(SlidingWindow(2)), sinks=True)
    with pytest.raises(UnknownArchitecture, match="without attention sinks"):
        own.check_is_built()
    q_THK, bias = torch.randn(3, 2, 4), AttentionBias(sinks_H=torch.zeros(2))
    layout = PackedBatch.of_ids([[5, 6, 7]]).layout
    for kernel in (TiledKernel(), MaskedSdpaKernel()):
        plan = kernel.plan(layout, FullAttention(), q_THK.device)
        with pytest.raises(KernelError, match="its record"):
            kernel.attend(q_THK, q_THK, q_THK, plan, pattern=FullAttention(), bias=bias)


def test_adapters_update_attention_alone(tmp_path):
    checkpoint = read_checkpoint(Source(write_model(tmp_path / "model"), "tiny"))
    encoder = build(checkpoint)
    assert add_low_rank(encoder, checkpoint.family, LowRank(2, 4.0, 0.0, "all-linear")) == 3 * 4
    names = adapter_tensors(encoder, checkpoint.family, "tokens")
    assert len([name for name in names if "lora_A" in name]) == 3 * 4
    with pytest.raises(InvalidRequest, match="experts or in groups, whose matrices adapters do not update"):
        add_low_rank(build(checkpoint), checkpoint.family, LowRank(2, 4.0, 0.0, "feedforward"))
