"""Sentences about labeled data: sizes, labels, what is dropped, and texts that repeat."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from unmask.finetuning.examples import Counts, Example


def describe(name: str, counts: Counts, texts: Sequence[Example]) -> list[str]:
    """Sentences about labeled data: sizes, labels, truncation, duplicates."""
    sentences = [
        f"{name}: {counts.texts:,} texts of {counts.tokens / max(1, counts.texts):.0f} tokens on average, "
        f"the longest {counts.longest:,}"
    ]
    if counts.labels:
        total = sum(counts.labels.values())
        shares = ", ".join(
            f"{label} {count:,} ({count / total:.1%})" for label, count in counts.labels.most_common(12)
        )
        more = f" and {len(counts.labels) - 12} more" if len(counts.labels) > 12 else ""
        sentences.append(f"{name}: labels {shares}{more}")
    if counts.unanswered:
        sentences.append(f"{name}: {counts.unanswered:,} questions have no answer")
    if counts.truncated:
        sentences.append(
            f"{name}: the end of {counts.truncated:,} texts is dropped, {counts.truncated_tokens:,} tokens "
            "in all"
        )
    if counts.windowed:
        sentences.append(f"{name}: {counts.windowed:,} texts are read in several windows")
    seen = Counter(map(_text_of, texts))
    twice = sum(count - 1 for count in seen.values())
    if twice:
        sentences.append(f"{name}: {twice:,} texts repeat another")
    return sentences


def leakage(train: Sequence[Example], dev: Sequence[Example]) -> str | None:
    """A sentence about dev texts that are also trained on; None if there are none."""
    seen = set(map(_text_of, train))
    shared = sum(_text_of(example) in seen for example in dev)
    return f"dev: {shared:,} of {len(dev):,} texts are also training texts" if shared else None


def _text_of(example: Example) -> Any:
    """What makes two examples the same text."""
    return example.record.text, example.record.pair, example.record.choices
