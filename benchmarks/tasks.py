"""Predictions of `classify`, `tag` and `answer` beside `transformers` with the same weights.

The weights are those of the default model with a random head for each task. `transformers` uses its
pipelines; it has none for questions any more, so the procedure of its example scripts stands for it:
overlapping windows, batches with padding, and the best span by the sum of its logits. It reads once with the
limit and the overlap of ours, and once with those that the pipeline had. Which batch size is fastest there
depends on the lengths, so each size that is given is a contender of its own.

The inputs are read in slices. All contenders read a slice in turn, in an order that moves on by one from
slice to slice, and the calls that are timed are the ones whose predictions are compared. Times are of the
processor, of all threads. A ratio is that of all seconds to those of ours in the first number format; lowest
and highest are those of single slices.

    python benchmarks/tasks.py --count 1000 --threads 1 --batch-sizes 1 8 --json
"""

import argparse
import json
import string
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import unmask
from benchmarks.peers.workloads import of_lengths
from unmask.text.windows import windows

LABELS = ("A", "B", "C", "D")
"""Of no tagging scheme, so that both libraries take the most probable one for each word."""
LENGTHS = (4, 512)
"""Tokens of texts, up to what the model reads: so no library drops any, and all predictions are compared."""
CONTEXTS = (300, 3000)
QUESTIONS = (6, 16)
OVERLAP, ANSWER_TOKENS = 64, 30
PIPELINE_TOKENS, PIPELINE_OVERLAP = 384, 128
"""Of the windows of the pipeline that `transformers` had for questions."""
WARM_UP = 3
"""Inputs that each contender reads before, untimed."""

Call = Callable[[Sequence[int]], list[Any]]
"""From the indices of inputs to their predictions."""


@dataclass(frozen=True)
class Pair:
    """The same weights in both libraries."""

    models: Mapping[str, unmask.Model]
    """Ours, by number format."""
    folder: Path

    @property
    def ours(self) -> unmask.Model:
        """The one in the first number format."""
        return next(iter(self.models.values()))

    def calls(self, call: Callable[[unmask.Model, Sequence[int]], list[Any]]) -> dict[str, Call]:
        """Our contenders, from a call with the model."""
        return {f"ours_{dtype}": partial(call, model) for dtype, model in self.models.items()}


def with_head(kind: str, folder: Path, options: argparse.Namespace) -> Pair:
    """The default model with a random head, so large that no prediction is a close call."""
    default = unmask.load("default").checkpoint.source.folder
    torch.manual_seed(options.seed)
    labels = {} if kind == "QuestionAnswering" else {"id2label": dict(enumerate(LABELS))}
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(default, **labels)
    head = model.qa_outputs if kind == "QuestionAnswering" else model.classifier
    with torch.no_grad():
        head.weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(default)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    return Pair({dtype: unmask.load(folder, dtype=dtype) for dtype in options.dtypes}, folder)


def drawn_texts(pair: Pair, count: int, bounds: tuple[int, int], seed: int) -> tuple[list[str], list[int]]:
    """Texts of random words, of lengths that are even on a logarithmic scale, and their tokens."""
    draw = np.random.default_rng(seed)
    vocabulary = transformers.AutoTokenizer.from_pretrained(pair.folder).get_vocab()
    words = sorted(word for word in vocabulary if len(word) > 2 and set(word) <= set(string.ascii_lowercase))
    lengths = np.exp(draw.uniform(*np.log(bounds), count)).astype(np.int64)
    lines = [" ".join(draw.choice(words, 1000)) for _ in range(20)]
    found = of_lengths(pair.ours.tokenizer, lengths, lines, "random words")
    return list(found.texts), list(found.tokens)


def measured(
    task: str, contenders: Mapping[str, Call], count: int, size: int
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The predictions of each contender, and how many times as long as the first each takes."""
    names = list(contenders)
    for call in contenders.values():
        call(range(min(WARM_UP, count)))
    found: dict[str, list[Any]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number, first in enumerate(range(0, count, size)):
        chosen = range(first, min(first + size, count))
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.process_time()
            found[name] += contenders[name](chosen)
            seconds[name].append(time.process_time() - start)
        taken = ", ".join(f"{name} {each[-1]:.1f} s" for name, each in seconds.items())
        print(f"{task}: {chosen.stop:,} of {count:,} inputs; {taken}", file=sys.stderr, flush=True)
    return found, {name: against(seconds[names[0]], each) for name, each in seconds.items()}


def compared_ones(found: Mapping[str, list[Any]]) -> tuple[list[Any], dict[str, list[Any]]]:
    """The predictions of ours in the first number format, and those of `transformers`."""
    ours = next(iter(found.values()))
    return ours, {name: theirs for name, theirs in found.items() if not name.startswith("ours")}


def against(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Seconds, and the ratio to ours: of all slices, and the lowest and highest of one slice."""
    single = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "seconds": round(sum(theirs), 2),
        "times_as_long": round(sum(theirs) / sum(ours), 2),
        "lowest": round(min(single), 2),
        "highest": round(max(single), 2),
    }


def share(same: Sequence[bool]) -> float | None:
    """The share that is true; None of nothing."""
    return round(float(np.mean(same)), 4) if len(same) else None


def pipelines(task: str, folder: Path, texts: Sequence[str], options: argparse.Namespace) -> dict[str, Call]:
    """A pipeline of `transformers` for each batch size."""

    def call(batch_size: int) -> Call:
        pipeline = transformers.pipeline(task, str(folder), device="cpu", batch_size=batch_size)
        return lambda chosen: list(pipeline([texts[index] for index in chosen]))

    return {f"batches_of_{size}": call(size) for size in options.batch_sizes}


def classified(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`classify` beside the pipeline."""
    pair = with_head("SequenceClassification", folder, options)
    texts, tokens = drawn_texts(pair, options.count, LENGTHS, options.seed)
    contenders: dict[str, Call] = {
        **pair.calls(lambda model, chosen: model.classify([texts[index] for index in chosen])),
        **pipelines("text-classification", folder, texts, options),
    }
    found, times = measured("classify", contenders, len(texts), options.slice)
    ours, found = compared_ones(found)
    return {
        "texts": len(texts),
        "tokens": sum(tokens),
        "equal_labels": {
            name: share([one.label == two["label"] for one, two in zip(ours, theirs, strict=True)])
            for name, theirs in found.items()
        },
        "largest_difference": max(
            abs(one.score - float(two["score"]))
            for theirs in found.values()
            for one, two in zip(ours, theirs, strict=True)
        ),
        "times": times,
    }


def tagged(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`tag` beside the pipeline; words are compared by the label of their first token."""
    pair = with_head("TokenClassification", folder, options)
    texts, tokens = drawn_texts(pair, options.count, LENGTHS, options.seed)
    contenders: dict[str, Call] = {
        **pair.calls(lambda model, chosen: model.tag([texts[index] for index in chosen])),
        **pipelines("token-classification", folder, texts, options),
    }
    found, times = measured("tag", contenders, len(texts), options.slice)
    ours, found = compared_ones(found)
    compared = {
        name: [pair for one, two in zip(ours, theirs, strict=True) for pair in labels_and_scores(one, two)]
        for name, theirs in found.items()
    }
    return {
        "texts": len(texts),
        "tokens": sum(tokens),
        "words": sum(len(one.words) for one in ours),
        "equal_labels": {name: share([same for same, _ in some]) for name, some in compared.items()},
        "largest_difference": max(apart for some in compared.values() for _, apart in some),
        "times": times,
    }


def labels_and_scores(ours: Any, theirs: Sequence[Mapping[str, Any]]) -> list[tuple[bool, float]]:
    """For each word of a text, whether its labels are equal, and how far its scores are apart."""
    by_start = {one["start"]: one for one in theirs}
    firsts = [(word, by_start[word.start]) for word in ours.words]
    return [(one["entity"] == word.label, abs(float(one["score"]) - word.score)) for word, one in firsts]


@dataclass(frozen=True)
class Part:
    """A window over a question and its context, as tokens."""

    owner: int
    inputs: dict[str, list[int]]
    inside: Any
    """Which tokens are of the context."""
    offsets: Any


class Scripts:
    """Questions answered as the example scripts of `transformers` do it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()

    def __call__(
        self,
        questions: Sequence[str],
        contexts: Sequence[str],
        batch_size: int,
        max_tokens: int | None = None,
        overlap: int = OVERLAP,
    ) -> list[tuple[int, int]]:
        """Start and end of each best answer; ``max_tokens`` of None is what the model reads."""
        read = self.tokenizer(
            list(questions),
            list(contexts),
            truncation="only_second",
            max_length=max_tokens or self.model.config.max_position_embeddings,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        owners, offsets = read.pop("overflow_to_sample_mapping"), read.pop("offset_mapping")
        parts = [
            Part(
                owner,
                {name: values[row] for name, values in read.items()},
                np.array([one == 1 for one in read.sequence_ids(row)]),
                offsets[row],
            )
            for row, owner in enumerate(owners)
        ]
        return self.of_parts(parts, len(questions), batch_size)

    def of_parts(self, parts: Sequence[Part], count: int, batch_size: int) -> list[tuple[int, int]]:
        """The best answers of ``count`` questions in some windows."""
        best = [(-np.inf, 0, 0)] * count
        for first in range(0, len(parts), batch_size):
            some = parts[first : first + batch_size]
            names = some[0].inputs
            batch = self.tokenizer.pad(
                {name: [part.inputs[name] for part in some] for name in names}, return_tensors="pt"
            )
            with torch.inference_mode():
                out = self.model(**batch)
            for place, part in enumerate(some):
                starts, ends = (
                    logits[place, : len(part.inside)].numpy() for logits in (out.start_logits, out.end_logits)
                )
                score, start, end = best_span(starts, ends, part.inside)
                if score > best[part.owner][0]:
                    best[part.owner] = (score, int(part.offsets[start][0]), int(part.offsets[end][1]))
        return [found[1:] for found in best]

    def in_windows_of(self, model: unmask.Model, question: str, context: str) -> tuple[int, int]:
        """The answer by the windows of `unmask`."""
        whole = model.tokenizer.encode_batch([question], [context])[0]
        parts = [
            Part(
                0,
                {
                    "input_ids": window.encoding.ids.tolist(),
                    "token_type_ids": window.encoding.token_type_ids.tolist(),
                    "attention_mask": [1] * len(window.tokens),
                },
                window.encoding.sequence_ids == 1,
                window.encoding.offsets,
            )
            for window in windows(whole, model.max_tokens, OVERLAP)
        ]
        return self.of_parts(parts, 1, 1)[0]


def best_span(starts: Any, ends: Any, inside: Any) -> tuple[float, int, int]:
    """The best span of up to `ANSWER_TOKENS` tokens of the context."""
    scores = starts[:, None] + ends[None]
    places = np.arange(len(starts))
    length = places[None] - places[:, None]
    allowed = inside[:, None] & inside[None] & (length >= 0) & (length < ANSWER_TOKENS)
    start, end = np.unravel_index(np.where(allowed, scores, -np.inf).argmax(), scores.shape)
    return float(scores[start, end]), int(start), int(end)


def answered(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`answer` beside the example scripts.

    Windows of `unmask` are equally long, which can change the best answer. Where the answers differ, the
    weights read the windows of `unmask` in `transformers` once more.
    """
    pair = with_head("QuestionAnswering", folder, options)
    contexts, tokens = drawn_texts(pair, options.count, CONTEXTS, options.seed)
    questions, _ = drawn_texts(pair, options.count, QUESTIONS, options.seed + 1)
    scripts = Scripts(folder)

    def ours(model: unmask.Model, chosen: Sequence[int]) -> list[Any]:
        return model.answer(
            [questions[index] for index in chosen],
            [contexts[index] for index in chosen],
            overlap_tokens=OVERLAP,
            max_answer_tokens=ANSWER_TOKENS,
        )

    def theirs(*choices: int) -> Call:
        return lambda chosen: scripts(
            [questions[index] for index in chosen], [contexts[index] for index in chosen], *choices
        )

    contenders = pair.calls(ours)
    for size in options.batch_sizes:
        contenders[f"batches_of_{size}"] = theirs(size)
        contenders[f"pipeline_windows_in_batches_of_{size}"] = theirs(size, PIPELINE_TOKENS, PIPELINE_OVERLAP)
    found, times = measured("answer", contenders, len(contexts), options.slice)
    results, found = compared_ones(found)
    spans = [(one.answers[0].start, one.answers[0].end) for one in results]
    other = next(iter(found.values()))
    apart = [index for index, span in enumerate(spans) if span != other[index]]
    again = [scripts.in_windows_of(pair.ours, questions[index], contexts[index]) for index in apart]
    return {
        "questions": len(contexts),
        "tokens": sum(tokens),
        "in_one_window": sum(one.windows == 1 for one in results),
        "equal_answers": share([a == b for a, b in zip(spans, other, strict=True)]),
        "equal_answers_in_one_window": share(
            [a == b for a, b, one in zip(spans, other, results, strict=True) if one.windows == 1]
        ),
        "others_equal_in_windows_of_ours": share(
            [spans[index] == span for index, span in zip(apart, again, strict=True)]
        ),
        "times": times,
    }


TASKS = {"classify": classified, "tag": tagged, "answer": answered}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--count", type=int, default=1000, help="inputs of each task")
    parser.add_argument("--slice", type=int, default=96, help="inputs that are read in turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8], help="of transformers")
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32"], help="of ours; transformers computes in float32"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    report: dict[str, Any] = {"count": options.count, "threads": options.threads, "dtypes": options.dtypes}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks:
            report[name] = TASKS[name](options, Path(folder) / name)
            print(json.dumps({name: report[name]}), file=sys.stderr, flush=True)
    print(json.dumps(report, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
