"""Predictions of `classify`, `tag` and `answer` beside `transformers` with the same weights.

The weights are those of the default model with a random head for each task. Both read the same texts and take
turns. `transformers` uses its pipelines, with the batches and the padding that they have; it has none for
questions any more, so the procedure of its example scripts stands for it: overlapping windows, batches with
padding, and the best span by the sum of its logits. Predictions are compared, and what `transformers`
truncates is counted.

    python benchmarks/tasks.py --count 1000 --threads 2 --json
"""

import argparse
import json
import string
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import unmask
from unmask.measure.texts import of_lengths
from unmask.measure.timing import interleaved, ratio

LABELS = ("A", "B", "C", "D")
"""Of no tagging scheme, so that both libraries take the most probable one for each word."""
SHORTEST, LONGEST = 4, 900
"""Tokens of texts; the model reads 512."""
CONTEXTS = (300, 3000)
OVERLAP, ANSWER_TOKENS = 64, 30


@dataclass(frozen=True)
class Pair:
    """The same weights in both libraries."""

    ours: unmask.Model
    folder: Path


def with_head(kind: str, folder: Path, seed: int) -> Pair:
    """The default model with a random head, so large that no prediction is a close call."""
    default = unmask.load("default").checkpoint.source.folder
    torch.manual_seed(seed)
    options = {} if kind == "QuestionAnswering" else {"id2label": dict(enumerate(LABELS))}
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(default, **options)
    head = model.qa_outputs if kind == "QuestionAnswering" else model.classifier
    with torch.no_grad():
        head.weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(default)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    return Pair(unmask.load(folder), folder)


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
    ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Both in turn: median seconds, and how many times as long `transformers` takes."""
    times = interleaved({"ours": ours, "theirs": theirs}, rounds, progress=progress)
    spread = ratio(times, "theirs", "ours")
    return {
        **{f"{name}_seconds": round(float(np.median(each)), 3) for name, each in times.items()},
        "times_as_long": {name: round(value, 2) for name, value in asdict(spread).items()},
    }


def share(same: Sequence[bool]) -> float | None:
    """The share that is true; None of nothing."""
    return round(float(np.mean(same)), 4) if len(same) else None


def classified(options: argparse.Namespace, folder: Path, progress: Any) -> dict[str, Any]:
    """`classify` beside the pipeline."""
    pair = with_head("SequenceClassification", folder, options.seed)
    texts, tokens = drawn_texts(pair, options.count, (SHORTEST, LONGEST), options.seed)
    pipeline = transformers.pipeline(
        "text-classification", str(folder), device="cpu", batch_size=options.batch_size, truncation=True
    )
    limit = pair.ours.max_tokens or 0
    found, other = pair.ours.classify(texts), pipeline(texts)
    whole = [place for place, count in enumerate(tokens) if count <= limit]
    return {
        "texts": len(texts),
        "tokens": sum(tokens),
        "truncated_by_theirs": len(texts) - len(whole),
        "tokens_dropped_by_theirs": sum(max(0, count - limit) for count in tokens),
        "equal_labels": share([found[place].label == other[place]["label"] for place in whole]),
        "largest_difference": max(abs(found[place].score - float(other[place]["score"])) for place in whole),
        **measured(lambda: pair.ours.classify(texts), lambda: pipeline(texts), options.rounds, progress),
    }


def tagged(options: argparse.Namespace, folder: Path, progress: Any) -> dict[str, Any]:
    """`tag` beside the pipeline; words are compared by the label of their first token."""
    pair = with_head("TokenClassification", folder, options.seed)
    texts, tokens = drawn_texts(pair, options.count, (SHORTEST, LONGEST), options.seed)
    pipeline = transformers.pipeline(
        "token-classification", str(folder), device="cpu", batch_size=options.batch_size
    )
    limit = pair.ours.max_tokens or 0
    found, other = pair.ours.tag(texts), pipeline(texts)
    same, worst = [], 0.0
    for ours, theirs, count in zip(found, other, tokens, strict=True):
        if count <= limit:
            by_start = {one["start"]: one for one in theirs}
            same += [by_start[word.start]["entity"] == word.label for word in ours.words]
            scores = [float(by_start[word.start]["score"]) for word in ours.words]
            apart = [abs(score - word.score) for score, word in zip(scores, ours.words, strict=True)]
            worst = max(worst, *apart)
    return {
        "texts": len(texts),
        "tokens": sum(tokens),
        "truncated_by_theirs": sum(count > limit for count in tokens),
        "tokens_dropped_by_theirs": sum(max(0, count - limit) for count in tokens),
        "words_compared": len(same),
        "equal_labels": share(same),
        "largest_difference": worst,
        **measured(lambda: pair.ours.tag(texts), lambda: pipeline(texts), options.rounds, progress),
    }


class Scripts:
    """Questions answered as the example scripts of `transformers` do it."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
        self.batch_size = batch_size

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[tuple[float, int, int]]:
        """Score, start and end of each best answer."""
        read = self.tokenizer(
            list(questions),
            list(contexts),
            truncation="only_second",
            max_length=self.model.config.max_position_embeddings,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        owners, offsets = read.pop("overflow_to_sample_mapping"), read.pop("offset_mapping")
        best = [(-np.inf, 0, 0)] * len(questions)
        for first in range(0, len(owners), self.batch_size):
            rows = range(first, min(first + self.batch_size, len(owners)))
            batch = self.tokenizer.pad(
                {name: [values[row] for row in rows] for name, values in read.items()}, return_tensors="pt"
            )
            with torch.inference_mode():
                out = self.model(**batch)
            for place, row in enumerate(rows):
                inside = np.array([one == 1 for one in read.sequence_ids(row)])
                bounds = [
                    logits[place, : len(inside)].numpy() for logits in (out.start_logits, out.end_logits)
                ]
                score, start, end = best_span(*bounds, inside)
                if score > best[owners[row]][0]:
                    best[owners[row]] = (score, offsets[row][start][0], offsets[row][end][1])
        return best


def best_span(starts: Any, ends: Any, inside: Any) -> tuple[float, int, int]:
    """The best span of up to `ANSWER_TOKENS` tokens of the context."""
    scores = starts[:, None] + ends[None]
    places = np.arange(len(starts))
    length = places[None] - places[:, None]
    allowed = inside[:, None] & inside[None] & (length >= 0) & (length < ANSWER_TOKENS)
    start, end = np.unravel_index(np.where(allowed, scores, -np.inf).argmax(), scores.shape)
    return float(scores[start, end]), int(start), int(end)


def answered(options: argparse.Namespace, folder: Path, progress: Any) -> dict[str, Any]:
    """`answer` beside the example scripts. Windows of several do not begin at the same tokens in both."""
    pair = with_head("QuestionAnswering", folder, options.seed)
    contexts, tokens = drawn_texts(pair, options.count, CONTEXTS, options.seed)
    questions, _ = drawn_texts(pair, options.count, (6, 16), options.seed + 1)
    scripts = Scripts(folder, options.batch_size)

    def ours() -> Any:
        return pair.ours.answer(questions, contexts, overlap_tokens=OVERLAP, max_answer_tokens=ANSWER_TOKENS)

    found, other = ours(), scripts(questions, contexts)
    same = [
        (one.answers[0].start, one.answers[0].end) == best[1:] for one, best in zip(found, other, strict=True)
    ]
    single = [one.windows == 1 for one in found]
    return {
        "questions": len(questions),
        "tokens": sum(tokens),
        "in_one_window": sum(single),
        "equal_answers_in_one_window": share([one for one, alone in zip(same, single, strict=True) if alone]),
        "equal_answers_in_several": share(
            [one for one, alone in zip(same, single, strict=True) if not alone]
        ),
        **measured(ours, lambda: scripts(questions, contexts), options.rounds, progress),
    }


TASKS = {"classify": classified, "tag": tagged, "answer": answered}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--count", type=int, default=1000, help="inputs of each task")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of transformers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    report: dict[str, Any] = {"count": options.count, "threads": options.threads}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks:
            report[name] = TASKS[name](options, Path(folder) / name, lambda done, of: None)
    print(json.dumps(report, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
