"""Entities of labels that are named with the text, beside the package gliner; both in one environment.

    python -m benchmarks.label_entities equal --models 200     spans and scores on tiny random models, float64
    python -m benchmarks.label_entities labels                 seconds by the number of labels
    python -m benchmarks.label_entities int8                   int8, and ONNX int8 of gliner: seconds, flips
    python -m benchmarks.label_entities int8 --texts 100 --words 300 --together

Weights are random; models have the shapes of GLiNER. Times alternate between the libraries in one process,
and each line states the load of the machine.
"""

import argparse
import os
import random
import re
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from gliner import GLiNER
from gliner import config as gliner_config
from gliner import model as gliner_model

import unmask
from unmask.errors import EmptyText
from unmask.tasks.label_spans import WORD

SENTENCES = (
    "Ada Lovelace met Charles Babbage in London on 5 June 1833, and the well-known drug aspirin isn't new! "
    "北京 大学 的 学生 在 巴黎 ذهب أحمد إلى المدرسة في القاهرة 😀 👩‍👩‍👧 🇫🇷 été naïve Straße — № x_1 e-mail"
)
WORDS = SENTENCES.split(" ")
LABELS = ["person", "city or town", "drug", "date"]
ODD = {
    "emoji": "😀 👩‍👩‍👧 went to 🇫🇷 with 👍🏽!",
    "Chinese": "北京大学的学生在巴黎。他们很高兴",
    "Arabic": "ذهب أحمد إلى المدرسة في القاهرة",
    "only spaces": "  \n\t ",
    "one word": "Bob",
    "300 words": " ".join(random.Random(5).choices(WORDS[:17], k=300)),
    "hyphens": "the well-known e-mail -- x_1 - a--b",
    "mixed": "Ada met 北京 in Straße № 5,and (aspirin) isn't new!",
}
KINDS = ("bert", "deberta", "modernbert", "roberta", "electra")


def write_tokenizer(folder: Path, kind: str) -> Any:
    """A tokenizer of words and characters, or of bytes, learned from `WORDS`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind in ("modernbert", "roberta"):
        engine = tokenizers.Tokenizer(tokenizers.models.BPE())
        engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: Any = tokenizers.trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=special,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        engine.normalizer = tokenizers.normalizers.BertNormalizer()
        engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=400, special_tokens=special, show_progress=False
        )
    engine.train_from_iterator([" ".join([*WORDS, *LABELS])] * 3, trainer)
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, **{f"{role}_token": piece for role, piece in roles.items()}
    )
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def encoder_config(kind: str, words: int, **size: int) -> dict[str, Any]:
    """The config of an encoder with room for texts of any length that is tried."""
    config = {"vocab_size": words, "max_position_embeddings": 4100, "pad_token_id": 0, **size}
    if kind == "deberta":
        return config | {
            "model_type": "deberta-v2", "relative_attention": True, "position_buckets": 256,
            "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "type_vocab_size": 0, "position_biased_input": False, "max_position_embeddings": 512,
        }  # fmt: skip
    more: dict[str, dict[str, Any]] = {
        "electra": {"embedding_size": size["hidden_size"]},
        "roberta": {"type_vocab_size": 1},
        "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    }
    return config | {"model_type": kind} | more.get(kind, {})


def write_model(
    folder: Path, kind: str, of_labels: str | None, size: dict[str, int], scale: float | None, **head: Any
) -> Path:
    """A random model, as gliner saves it, with an encoder of labels of the kind ``of_labels``."""
    tokenizer = write_tokenizer(folder / "tokenizer", kind)
    if of_labels is not None:
        words = len(write_tokenizer(folder / "labels", of_labels))
        head |= {
            "labels_encoder": str(folder / "labels"),
            "labels_encoder_config": encoder_config(of_labels, words, **size),
        }
    name = (
        ("Bi" if of_labels else "Uni") + "Encoder" + ("Span" if head["span_mode"] == "markerV0" else "Token")
    )
    config = getattr(gliner_config, f"{name}Config")(
        model_name=str(folder / "tokenizer"),
        encoder_config=encoder_config(kind, len(tokenizer) + 10, **size),
        max_len=384,
        **head,
    )
    kind_of_model = getattr(gliner_model, f"{name}GLiNER")
    model = kind_of_model(config, tokenizer=tokenizer, backbone_from_pretrained=False)
    kind_of_model._resize_token_embeddings(model, config, tokenizer, True)
    if scale is not None:
        with torch.no_grad():
            for parameter in model.model.parameters():
                parameter.copy_(torch.randn_like(parameter) * scale)
    model.save_pretrained(folder / "model", safe_serialization=True)
    if of_labels is not None:
        for file in (folder / "labels").iterdir():
            target = folder / "model" / "labels_encoder" / file.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    return folder / "model"


def equal(models: int) -> None:
    """Compare entities on random models and texts, in float64."""
    counts = {
        "models": 0,
        "results": 0,
        "entities": 0,
        "others": 0,
        "a word has no token": 0,
        "refused": 0,
        "gliner failed": 0,
    }
    worst = 0.0
    for number in range(models):
        draw = random.Random(number)
        torch.manual_seed(number)
        kind, of_labels = KINDS[number % 5], draw.choice(KINDS)
        width = draw.choice([8, 12, 16])
        size = {
            "hidden_size": width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 12,
        }
        head = {
            "hidden_size": draw.choice([8, 12]),
            "max_width": draw.choice([3, 6, 12]),
            "span_mode": ("markerV0", "token_level")[number // 5 % 2],
            "num_rnn_layers": draw.choice([0, 1]),
        }
        drawn = {f"drawn {at}": " ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for at in range(2)}
        with tempfile.TemporaryDirectory() as place:
            folder = write_model(
                Path(place), kind, of_labels if number % 2 else None, size, draw.choice([0.2, 0.35]), **head
            )
            theirs = GLiNER.from_pretrained(str(folder))
            theirs.eval()
            theirs.model.double()
            ours = unmask.load(folder, dtype="float64", compat="hf")
            counts["models"] += 1
            nested, several, threshold = draw.random() < 0.5, draw.random() < 0.5, draw.choice([0.3, 0.5])
            for name, text in (ODD | drawn).items():
                if name == "300 words" and nested and head["span_mode"] == "token_level":
                    continue  # random scores can fit nearly all 45,000 spans, compared in pairs
                try:
                    with torch.no_grad():
                        (expected,) = theirs.inference(
                            [text], LABELS, flat_ner=not nested, multi_label=several, threshold=threshold
                        )
                except IndexError:  # a span that ends beyond the text
                    counts["gliner failed"] += 1
                    continue
                try:
                    found = ours.tag(
                        text, labels=LABELS, nested=nested, multi_label=several, threshold=threshold
                    ).entities
                except EmptyText:
                    counts["refused"] += 1
                    assert not expected, name
                    continue
                counts["results"] += 1
                mine = sorted((it.start, it.end, it.label, it.score) for it in found)
                other = sorted((it["start"], it["end"], it["label"], it["score"]) for it in expected)
                if [row[:3] for row in mine] != [row[:3] for row in other]:
                    reader = ours.tokenizer.engine
                    words = WORD.findall(text)
                    lost = any(not reader.encode(word, add_special_tokens=False).ids for word in words)
                    counts["a word has no token" if lost else "others"] += 1
                    print(f"model {number} ({kind}, {head['span_mode']}), {name}: {len(mine)}, {len(other)}")
                    continue
                counts["entities"] += len(mine)
                worst = max([worst, *(abs(a[3] - b[3]) for a, b in zip(mine, other, strict=True))])
        if number % 10 == 9 or number == models - 1:
            print(counts, f"largest difference of a score {worst:.1e}", flush=True)


SMALL = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072}
SMALL_HEAD = {"hidden_size": 512, "max_width": 12, "span_mode": "markerV0", "num_rnn_layers": 1}


def labels_of(count: int) -> list[str]:
    """Different labels of one or two words."""
    draw = random.Random(3)
    words = sorted({word for word in WORDS if re.fullmatch("[a-z]+", word)})
    return [f"{draw.choice(words)} {number}" for number in range(count)]


def by_labels(repeats: int, counts: list[int]) -> None:
    """Seconds for two texts of 30 words, one a call, by the number of labels."""
    texts = [" ".join(random.Random(seed).choices(WORDS[:17], k=30)) for seed in range(2)]
    for of_labels in (None, "bert"):
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as place:
            folder = write_model(Path(place), "deberta", of_labels, SMALL, None, **SMALL_HEAD)
            theirs = GLiNER.from_pretrained(str(folder))
            theirs.eval()
            models = {dtype: unmask.load(folder, dtype=dtype) for dtype in ("float32", "int8")}
            for count in counts:
                labels = labels_of(count)
                # One at a time, for it pads to the tokenizer's longest text, and this one has none.
                vectors = None if of_labels is None else theirs.encode_labels(labels, batch_size=1)
                seconds: dict[str, list[float]] = {"gliner": [], **{dtype: [] for dtype in models}}
                for model in models.values():  # it remembers vectors of labels, as gliner is given them
                    model.tag(texts[0], labels=labels)
                for _ in range(repeats):
                    start = time.perf_counter()
                    for text in texts:
                        with torch.no_grad():
                            if vectors is None:
                                theirs.inference([text], labels)
                            else:
                                theirs.batch_predict_with_embeds([text], vectors, labels)
                    seconds["gliner"].append(time.perf_counter() - start)
                    for dtype, model in models.items():
                        start = time.perf_counter()
                        for text in texts:
                            model.tag(text, labels=labels)
                        seconds[dtype].append(time.perf_counter() - start)
                middle = {name: statistics.median(values) for name, values in seconds.items()}
                print(
                    f"{'one encoder' if of_labels is None else 'two encoders'}, {count} labels: "
                    + ", ".join(
                        f"{name} {value:.2f} s ({middle['gliner'] / value:.1f})"
                        for name, value in middle.items()
                    )
                    + f", load {os.getloadavg()[0]:.0f}",
                    flush=True,
                )


def int8(repeats: int, count: int, longest: int, *, together: bool) -> None:
    """Seconds and spans that differ from float32, of texts of 5 to ``longest`` words with 10 labels.

    Each text is a call of its own, or all are in one, of which each library makes its own batches.
    """
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS[:17], k=draw.randint(5, longest))) for _ in range(count)]
    parts = [texts] if together else [[text] for text in texts]
    labels = labels_of(10)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = write_model(Path(place), "deberta", None, SMALL, None, **SMALL_HEAD)
        theirs = GLiNER.from_pretrained(str(folder))
        theirs.eval()
        theirs.export_to_onnx(folder, quantize=True)
        exported = GLiNER.from_pretrained(
            str(folder), load_onnx_model=True, onnx_model_file="model_quantized.onnx"
        )
        ours = {dtype: unmask.load(folder, dtype=dtype) for dtype in ("float32", "int8")}
        # Random weights score near one half, so the threshold is the score that 2,000 spans reach.
        scores = sorted(
            entity.score
            for tagging in ours["float32"].tag(
                texts, labels=labels, threshold=0, nested=True, multi_label=True
            )
            for entity in tagging.entities
        )
        threshold = scores[-2000]
        options = {"threshold": threshold}

        def by_gliner(model: Any) -> list[set[tuple[int, int, str]]]:
            with torch.no_grad():
                rows = [
                    row
                    for part in parts
                    for row in model.inference(part, labels, flat_ner=False, multi_label=True, **options)
                ]
            return [{(it["start"], it["end"], it["label"]) for it in row} for row in rows]

        def by_us(model: Any) -> list[set[tuple[int, int, str]]]:
            rows = [
                row
                for part in parts
                for row in model.tag(part, labels=labels, nested=True, multi_label=True, **options)
            ]
            return [{(it.start, it.end, it.label) for it in row.entities} for row in rows]

        runs = {
            "gliner float32": lambda: by_gliner(theirs),
            "gliner ONNX int8": lambda: by_gliner(exported),
            **{dtype: lambda model=model: by_us(model) for dtype, model in ours.items()},
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        spans = {}
        for _ in range(repeats):
            for name, run in runs.items():
                start = time.perf_counter()
                spans[name] = run()
                seconds[name].append(time.perf_counter() - start)
        base = spans["gliner float32"]
        for name, values in seconds.items():
            either = sum(len(a | b) for a, b in zip(spans[name], base, strict=True))
            differ = sum(len(a ^ b) for a, b in zip(spans[name], base, strict=True))
            middle = statistics.median(values)
            ratio = statistics.median(seconds["gliner float32"]) / middle
            print(
                f"{name}: {middle:.2f} s ({ratio:.1f} times), {differ} of {either} spans differ from gliner "
                f"float32, load {os.getloadavg()[0]:.0f}",
                flush=True,
            )


def main() -> None:
    """Run one comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("equal", "labels", "int8"))
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--counts", default="10,30,100,300,1000")
    parser.add_argument("--texts", type=int, default=20, help="of int8")
    parser.add_argument("--words", type=int, default=60, help="of int8: the most words of a text")
    parser.add_argument("--together", action="store_true", help="of int8: all texts in one call")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if chosen.what == "equal":
        equal(chosen.models)
    elif chosen.what == "labels":
        by_labels(chosen.repeats, [int(count) for count in chosen.counts.split(",")])
    else:
        int8(chosen.repeats, chosen.texts, chosen.words, together=chosen.together)


if __name__ == "__main__":
    main()
