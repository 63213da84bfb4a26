"""Random adapters of small models, written as a run writes them."""

import torch

from unmask.encoder.layers.lora import updates
from unmask.spec import Classifier
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.heads.classes import with_heads
from unmask.weights.write.adapter_export import LowRank, add_low_rank, write_adapter
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder


def write_random_adapter(base, folder, role, labels=(), *, name=None, seed=1, kind="all-linear", rank=2):
    """An adapter of the checkpoint in a folder, with random weights; returns its folder."""
    checkpoint = read_checkpoint(Source(base, base.name))
    config = {key: value for key, value in checkpoint.config.items() if key not in checkpoint.unread_config}
    if labels:
        config |= {"id2label": {str(number): label for number, label in enumerate(labels)}}
        config |= {"label2id": {label: number for number, label in enumerate(labels)}}
    config = with_heads(config, frozenset({role}))
    made = new_checkpoint(config, checkpoint.tokenizer.files)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = new_encoder(made)
        plain = build(checkpoint).state_dict()
        encoder.load_state_dict(
            encoder.state_dict() | {k: v for k, v in plain.items() if "heads." not in k}, strict=False
        )
        how = LowRank(rank, 3.0, 0.0, kind)
        add_low_rank(encoder, made.family, how)
        for update in updates(encoder).values():
            torch.nn.init.normal_(update.b_NR, std=0.5)
        for parameter in encoder.heads.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    head = next(one for one in encoder.spec.heads if isinstance(one, Classifier))
    assert head.role == role
    write_adapter(encoder, made, role, folder, name=name or folder.name, base=checkpoint, how=how)
    return folder
