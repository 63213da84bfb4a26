"""Tiny checkpoints that prune documents, in the layouts of Provence and OpenProvence, and what their authors'
code computes of a query with a document.

Both are random. `transformers` has neither class: the encoder and the score are its own, and the second head
is one matrix on states.
"""

import json

import torch
import transformers
from safetensors.torch import save_file

from tests.support.grounding import tiny_modernbert, write_byte_tokenizer


def _written(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _head(width, seed):
    torch.manual_seed(seed + 1)
    head = torch.nn.Linear(width, 2)
    torch.nn.init.normal_(head.weight, std=0.6)
    return head


def write_provence(folder, *, labels=1, seed=0):
    """A DeBERTa v3 with both heads; returns its network."""
    size = write_byte_tokenizer(folder, 512)
    config = transformers.DebertaV2Config(
        vocab_size=size, hidden_size=24, num_attention_heads=3, intermediate_size=32, num_hidden_layers=2,
        max_position_embeddings=512, type_vocab_size=0, relative_attention=True, position_buckets=8,
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], pooler_hidden_size=24,
        position_biased_input=False, initializer_range=0.5, num_labels=labels,
    )  # fmt: skip
    torch.manual_seed(seed)
    network = transformers.DebertaV2ForSequenceClassification(config).eval()
    head = _head(24, seed)
    tensors = network.state_dict() | {f"token_classifier.{k}": v for k, v in head.state_dict().items()}
    stored = config.to_dict() | {"model_type": "Provence", "architectures": ["Provence"]}
    _written(folder, stored, tensors)
    return lambda ids: _read(network, head, ids, None)


def write_open(folder, *, kind="ModernBert", seed=0, threshold=None, max_tokens=512):
    """A cross-encoder in the layout of OpenProvence; returns what computes both outputs."""
    size = write_byte_tokenizer(folder)
    if kind == "ModernBert":
        config = tiny_modernbert(size, num_labels=1, classifier_pooling="mean")
    else:
        config = transformers.BertConfig(
            vocab_size=size, hidden_size=24, num_attention_heads=3, intermediate_size=32, num_hidden_layers=2,
            max_position_embeddings=512, initializer_range=0.5, num_labels=1, pad_token_id=0,
        )  # fmt: skip
    torch.manual_seed(seed)
    network = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    if kind == "ModernBert":
        torch.nn.init.normal_(network.model.final_norm.weight, mean=1.0, std=0.4)
    head = _head(24, seed)
    tensors = {f"ranking_model.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"pruning_head.classifier.{name}": tensor for name, tensor in head.state_dict().items()}
    stored = {
        "model_type": "open_provence",
        "architectures": ["OpenProvenceForSequenceClassification"],
        "mode": "reranking_pruning",
        "base_model_config": config.to_dict(),
        "pruning_config": {"hidden_size": 24, "num_labels": 2},
        "max_length": max_tokens,
        "num_labels": 1,
        "num_pruning_labels": 2,
    }
    if threshold is not None:
        stored["default_threadshold"] = threshold
    _written(folder, stored, tensors)
    norm = network.model.final_norm if kind == "ModernBert" else None
    return lambda ids: _read(network, head, ids, norm)


def _read(network, head, ids, norm):
    """The probability of each token, and the first logit of relevance.

    ``norm``: the final norm, whose input the second head reads, as it did in `transformers` 4.
    """
    states = []
    handle = None if norm is None else norm.register_forward_hook(lambda _, read, __: states.append(read[0]))
    with torch.no_grad():
        output = network(torch.tensor([list(ids)]), output_hidden_states=True)
        read = states[0] if states else output.hidden_states[-1]
        probabilities_N = head(read[0]).softmax(-1)[:, 1]
    if handle is not None:
        handle.remove()
    return probabilities_N.numpy(), float(output.logits[0, 0])
