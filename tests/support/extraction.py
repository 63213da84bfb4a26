"""Tiny checkpoints of GLiNER2, with weights of a fixed seed."""

import json

import numpy as np
from safetensors.numpy import save_file

from tests.support.tokenizers_built import write_word_tokenizer
from unmask.base.json_settings import JsonSettings
from unmask.families import family_of
from unmask.spec import SchemaHead
from unmask.spec.shapes import tensor_shapes
from unmask.tasks.schema import SIGNS
from unmask.weights.heads.schema_files import COUNTING, ENCODER, POOLINGS, schema_shapes
from unmask.weights.tensor_report import moves

WORDS = (
    *(
        "the",
        "bank",
        "closed",
        "at",
        "five",
        "money",
        "sport",
        "film",
        "a",
        "was",
        "dull",
        "big",
        "day",
        "anna",
    ),
    *("works", "for", "apple", ",", ".", "!", "?", "-", "(", ")", "|", ":", "entities", "company", "person"),
    *("head", "tail", "founded", "by", "title", "price", "in", "london", "said", "of", "and", "red", "good"),
    *("bad", "review", "##s", "##b", "s", "b"),
)
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNS, *WORDS)
SHARED = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 200,
    "vocab_size": len(PIECES),
    "pad_token_id": 0,
}
ENCODERS = {
    "bert": SHARED | {"model_type": "bert", "type_vocab_size": 2},
    "deberta": SHARED
    | {
        "model_type": "deberta-v2",
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": SHARED
    | {"model_type": "modernbert", "local_attention": 4, "global_attn_every_n_layers": 2},
}


def write_gliner2(folder, encoder="bert", seed=0, **changes):
    """A folder as gliner2 writes it; returns it."""
    encoder_config = ENCODERS[encoder]
    config = {"model_type": "extractor", "model_name": "none", "max_width": 4, "counting_layer": "count_lstm"}
    config |= {"token_pooling": "first", "architecture": "span"} | changes
    write_word_tokenizer(folder, PIECES, 5 + len(SIGNS))
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 200}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "encoder_config").mkdir(exist_ok=True)
    (folder / "encoder_config" / "config.json").write_text(json.dumps(encoder_config))
    settings = JsonSettings("encoder_config/config.json", encoder_config)
    family = family_of(settings.values)
    spec = family.read(settings, "published")
    ours, shapes = tensor_shapes(spec), {}
    for move in moves(family.tensor_map_of(spec), ours):
        first, *rest = ours[move.ours]
        for name, share in zip(move.theirs, move.rows_of(first, spec), strict=True):
            shapes[ENCODER + name] = (share, *rest)
    if encoder == "bert":
        shapes |= {f"{ENCODER}pooler.dense.weight": (16, 16), f"{ENCODER}pooler.dense.bias": (16,)}
    head = SchemaHead(4, COUNTING[config["counting_layer"]], POOLINGS[config["token_pooling"]])
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted((shapes | schema_shapes(head, 16)).items()):
        values = 0.3 * random.standard_normal(shape)
        if "norm" in name.lower() and name.endswith("weight"):
            values = 1 + values / 3
        if name == "count_pred.2.bias":
            values = 2 * values + np.linspace(6, -6, 20)
        tensors[name] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def as_lines(result):
    """What was extracted, a line each; of records a line for each field. Scores have four digits."""

    def said(value):
        return f"{value.text.lower()} {value.start} {value.score:.4f}"

    entities = [f"entity {it.label}: {it.text} {it.start} {it.end} {it.score:.4f}" for it in result.entities]
    relations = [f"relation {it.name}: {said(it.head)}; {said(it.tail)}" for it in result.relations]
    records = [
        f"record {number} {it.name}, {name}: {'/'.join(map(said, values))}"
        for number, it in enumerate(result.records)
        for name, values in it.fields.items()
        if values
    ]
    classes = [
        f"class {name}: {label} {it.scores[label]:.4f}"
        for name, it in result.classes.items()
        for label in it.labels
    ]
    return [*sorted(entities), *relations, *records, *classes]
