"""A mixture of experts beside the published formulas in float64, with gradients; nomic-embed-text-v2-moe."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.parity.test_downloaded import SIZES, write_modules
from tests.support.specs import EXPERTS
from tests.support.tiny import WIDTH, write_tokenizer
from unmask.encoder.encoder import Encoder, compile_blocks
from unmask.encoder.layers.block import initialize
from unmask.encoder.layers.parts import ExpertNetwork, balance_loss
from unmask.engines.export.padded import why_not_padded
from unmask.engines.native.engine import NativeEngine
from unmask.engines.native.program import unsupported_encoder
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture
from unmask.families import family_of, find_architecture
from unmask.spec import ExpertFeedForward
from unmask.spec.describe import describe_feedforward
from unmask.spec.shapes import parameter_count
from unmask.text import PackedBatch
from unmask.training.run.flops import Work
from unmask.weights import Source, read_checkpoint

TEXTS = ["the river bank", "another text was muddy!", "a", "the river, the bank, a muddy text"]
ACTIVATIONS = {"gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}

NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "attn_pdrop": 0.0,
    "causal": False,
    "expert_choice_router": False,
    "ffn_div": 1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": 2,
    "n_embd": WIDTH,
    "n_head": 5,
    "n_inner": 12,
    "n_layer": 4,
    "n_positions": 2048,
    "num_experts": 4,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "router_aux_loss_coef": 0.1,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_type": "cls_index",
    "type_vocab_size": 1,
    "use_rms_norm": None,
    "vocab_size": SIZES["vocab_size"],
}
"""The keys of its config.json, with small numbers."""


def experts_by_hand(x_TD, router_ED, inner_EFD, outer_EFD, bias, spec):
    """Every token by itself, over a loop of its experts."""
    rows = []
    for x_D in x_TD:
        p_E = torch.softmax(router_ED @ x_D, 0)
        chosen = p_E.argsort(descending=True)[: spec.chosen]
        total = p_E[chosen].sum() if spec.normalize else 1.0
        y_D = torch.zeros_like(x_D)
        for expert in chosen:
            inner_F = ACTIVATIONS[spec.activation](inner_EFD[expert] @ x_D)
            y_D = y_D + p_E[expert] / total * (inner_F @ outer_EFD[expert])
        rows.append(y_D if bias is None else y_D + bias)
    return torch.stack(rows)


@pytest.mark.parametrize("tokens", [1, 2, 37])
@pytest.mark.parametrize("layer", [1, 2])
def test_forward_and_backward_are_the_formula(layer, tokens):
    spec = EXPERTS.layers[layer].feedforward
    torch.manual_seed(5)
    network = ExpertNetwork(spec, EXPERTS.width).double()
    if network.experts.bias is not None:
        torch.nn.init.normal_(network.experts.bias)
    x_TD = torch.randn(tokens, EXPERTS.width, dtype=torch.float64, requires_grad=True)
    shape = (spec.experts, spec.width, EXPERTS.width)
    parameters = [network.router.weight, network.experts.inner, network.experts.outer]
    parameters += [] if network.experts.bias is None else [network.experts.bias]

    def by_hand():
        inner, outer = network.experts.inner.view(shape), network.experts.outer.view(shape)
        return experts_by_hand(x_TD, network.router.weight, inner, outer, network.experts.bias, spec)

    ours, expected = network(x_TD), by_hand()
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    direction_TD = torch.randn_like(ours)
    found = torch.autograd.grad((ours * direction_TD).sum(), [x_TD, *parameters])
    wanted = torch.autograd.grad((expected * direction_TD).sum(), [x_TD, *parameters])
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_the_loss_of_balance_is_least_where_experts_are_chosen_equally_often():
    spec = ExpertFeedForward(3, "gelu", experts=4, chosen=1, balance=0.5)
    network = ExpertNetwork(spec, 4)
    with torch.no_grad():
        network.router.weight.copy_(20 * torch.eye(4))
    network(torch.eye(4))  # every expert once
    assert balance_loss(network).item() == pytest.approx(0.5, abs=1e-6)
    assert balance_loss(network) is None, "it is forgotten"
    network(torch.eye(4)[[0, 0, 0, 0]])  # one expert only
    collapsed = balance_loss(network)
    assert collapsed.item() == pytest.approx(0.5 * 4, abs=1e-4)
    collapsed.backward()
    assert network.router.weight.grad is not None
    network.eval()(torch.eye(4))
    assert balance_loss(network) is None


def test_an_encoder_in_training_sums_the_losses_of_its_layers():
    encoder = Encoder(replace(EXPERTS, layers=tuple(_balanced(layer) for layer in EXPERTS.layers))).train()
    encoder.encode(PackedBatch.of_ids([[5, 6, 7, 8], [9, 10]]))
    balance_loss(encoder).backward()
    assert encoder.layers[1].feedforward.router.weight.grad.abs().max() > 0


def _balanced(layer):
    network = layer.feedforward
    return replace(layer, feedforward=replace(network, balance=0.1)) if hasattr(network, "experts") else layer


def write_nomic(folder, **changes):
    """Random tensors under the published names."""
    config = NOMIC | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    family = family_of(config)
    spec = family.from_config(**config)
    torch.manual_seed(4)
    width, inner = config["n_embd"], config["n_inner"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.token_type_embeddings.weight": (1, width),
        "emb_ln.weight": (width,),
        "emb_ln.bias": (width,),
    }
    for layer in range(config["n_layer"]):
        at = f"encoder.layers.{layer}."
        linear = {"attn.Wqkv": (3 * width, width), "attn.out_proj": (width, width)}
        if layer % config["moe_every_n_layers"] == 1:
            experts = config["num_experts"]
            shapes |= {at + f"mlp.experts.mlp.{w}": (experts * inner, width) for w in ("w1", "w2")}
            shapes |= {at + "mlp.experts.bias": (width,), at + "mlp.router.layer.weight": (experts, width)}
        else:
            linear |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
        shapes |= {at + f"{name}.weight": shape for name, shape in linear.items()}
        shapes |= {at + f"{name}.bias": shape[:1] for name, shape in linear.items()}
        shapes |= {at + f"norm{n}.{part}": (width,) for n in (1, 2) for part in ("weight", "bias")}
    tensors = {
        name: 0.4 * torch.randn(shape) + float("norm" in name and name.endswith("weight"))
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    write_modules(folder, ["1_Pooling mean", "2_Normalize"])
    return spec


def nomic_by_hand(tensors, ids, config):
    """The last states of one text, by the published formulas in float64."""
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    width, heads = config["n_embd"], config["n_head"]

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(x, name):
        return torch.nn.functional.layer_norm(
            x, (width,), weights[name + ".weight"], weights[name + ".bias"], config["layer_norm_epsilon"]
        )

    half = width // heads // 2
    angles = torch.arange(len(ids)).double()[:, None] / 10000.0 ** (torch.arange(half).double() / half)
    cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]

    def rotate(x_NHK):
        first, second = x_NHK.chunk(2, -1)
        return x_NHK * cos + torch.cat((-second, first), -1) * sin

    words, types = (weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    x = norm(words[ids] + types[0], "emb_ln")
    for layer in range(config["n_layer"]):
        at = f"encoder.layers.{layer}."
        q, k, v = linear(x, at + "attn.Wqkv").view(len(ids), 3, heads, -1).unbind(1)
        scores = torch.einsum("qhk,nhk->hqn", rotate(q), rotate(k)) / (width // heads) ** 0.5
        mixed = torch.einsum("hqn,nhk->qhk", scores.softmax(-1), v).flatten(1)
        x = norm(x + linear(mixed, at + "attn.out_proj"), at + "norm1")
        if layer % 2 == 1:
            shape = (config["num_experts"], config["n_inner"], width)
            mlp = experts_by_hand(
                x,
                weights[at + "mlp.router.layer.weight"],
                weights[at + "mlp.experts.mlp.w1"].view(shape),
                weights[at + "mlp.experts.mlp.w2"].view(shape),
                weights[at + "mlp.experts.bias"],
                ExpertFeedForward(config["n_inner"], "gelu", config["num_experts"], config["moe_top_k"]),
            )
        else:
            mlp = linear(torch.nn.functional.gelu(linear(x, at + "mlp.fc1")), at + "mlp.fc2")
        x = norm(x + mlp, at + "norm2")
    return x


def test_nomic_embed_v2_as_published(tmp_path):
    write_nomic(tmp_path / "model")
    model = unmask.load(tmp_path / "model")
    assert model.checkpoint.family.name == "nomic_experts"
    assert not isinstance(model.engine, NativeEngine)
    tensors = load_file(tmp_path / "model/model.safetensors")
    expected = []
    for text, states in zip(TEXTS, model.hidden_states(TEXTS), strict=True):
        by_hand = nomic_by_hand(tensors, model.tokenize(text).ids.tolist(), NOMIC)
        np.testing.assert_allclose(states, by_hand, rtol=0, atol=2e-5)
        expected.append(torch.nn.functional.normalize(by_hand.mean(0), dim=0).numpy())
    np.testing.assert_allclose(model.embed(TEXTS), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.embed(TEXTS)[2], model.embed(TEXTS[2]), rtol=0, atol=1e-6)
    model.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved/model.safetensors")
    assert saved.keys() == tensors.keys()
    again = unmask.load(tmp_path / "saved")
    assert again.spec == model.spec
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))
    bfloat16 = unmask.load(tmp_path / "model", dtype="bfloat16").embed(TEXTS)
    assert (bfloat16 * np.array(expected)).sum(1).min() > 0.95


def test_what_is_not_built_is_refused_by_name(tmp_path):
    write_nomic(tmp_path / "model")
    for changes, said in (
        ({"num_shared_experts": 1}, "num_shared_experts is 1"),
        ({"expert_choice_router": True}, "expert_choice_router"),
        ({"moe_normalize_expert_weights": 2}, "moe_normalize_expert_weights is 2"),
    ):
        with pytest.raises(UnknownArchitecture, match=said):
            family_of(NOMIC).from_config(**NOMIC | changes)
    with pytest.raises(CorruptCheckpoint, match="5 experts are chosen of 4"):
        family_of(NOMIC).from_config(**NOMIC | {"moe_top_k": 5})
    spec = read_checkpoint(Source(tmp_path / "model", "model")).spec
    assert "mixture of experts" in unsupported_encoder(spec)
    assert "experts is not built" in why_not_padded(spec)
    with pytest.raises(InvalidRequest, match="mixture of experts has no products of 8-bit integers"):
        unmask.load(tmp_path / "model", dtype="int8", backend="torch")
    with pytest.raises(InvalidRequest, match="backend is native, and a mixture of experts"):
        unmask.load(tmp_path / "model", backend="native")
    with pytest.raises(InvalidRequest, match="cannot be compiled"):
        compile_blocks(Encoder(EXPERTS))


def test_sizes_and_operations():
    spec = find_architecture("nomic-embed-text-v2-moe")[1].spec
    assert parameter_count(spec) == 475_292_928, "as its authors count them"
    assert describe_feedforward(spec.layers[1].feedforward) == "3,072 GELU, 2 of 8 experts"
    encoder = Encoder(EXPERTS)
    network = EXPERTS.layers[1].feedforward
    fewer = replace(network, experts=network.chosen)
    two = Encoder(replace(EXPERTS, layers=(EXPERTS.layers[0], replace(EXPERTS.layers[1], feedforward=fewer))))
    whole = Encoder(replace(EXPERTS, layers=EXPERTS.layers[:2]))
    lengths = np.array([7, 3])
    router = 3 * 2.0 * (network.experts - network.chosen) * EXPERTS.width * 10
    assert Work(whole).of(lengths, 0) == Work(two).of(lengths, 0) + router
    initialize(encoder, 0.5, 3, "zero_out")
    experts = encoder.layers[1].feedforward.experts
    assert experts.outer.abs().max() == 0
    assert 0.4 < experts.inner.std() < 0.6
    assert experts.bias.abs().max() == 0
