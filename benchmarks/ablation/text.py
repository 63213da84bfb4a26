"""The text of an experiment: a sample, a tokenizer and tokens, shared by all runs."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.ablation.plan import HALVES, TEXT, Plan, sources
from unmask.base.files import unwritable, whole_file
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.text.tokenizer import TOKENIZER_FILES
from unmask.training.data.shards import ShardSet
from unmask.training.data.sources import SourceSpec, documents
from unmask.training.data.train_tokenizer import sample, train_tokenizer
from unmask.training.data.writing import prepare

BYTES_PER_TOKEN = 6
"""Bytes of text per token, generous for every vocabulary used here."""
LEAST_BYTES = 200_000
"""Smallest sample: training a vocabulary needs text too."""

Say = Callable[[str], None]


def prepare_text(plan: Plan, out: Path, say: Say) -> None:
    """Create the sample, the tokenizer and the tokens, unless they exist.

    Raises:
        InvalidRequest: a file does not exist, or there is less text than a run reads.
        OutputError: the disk is full or read-only.
    """
    try:
        if not (out / TEXT).is_dir() or not all(
            (out / TEXT / f"{half[0]}.jsonl").is_file() for half in HALVES
        ):
            say("taking a sample of the text")
            _write_sample(plan, out / TEXT)
        if not (out / "tokenizer" / "tokenizer.json").is_file():
            say(f"training a tokenizer with {plan.sizes.vocabulary:,} tokens")
            _write_tokenizer(plan, out)
    except OSError as error:
        raise unwritable(out, error) from None
    say("tokenizing")
    _, sets = read_text(plan, out)
    for one, half in zip(sets, HALVES, strict=True):
        wanted = plan.training.tokens // len(HALVES)
        if one.token_count < wanted:
            raise InvalidRequest(
                f"the text has {one.token_count:,} tokens of {half[0]} and a run reads {wanted:,}; "
                "name more files, or ask for fewer tokens in another folder"
            )


def read_text(plan: Plan, out: Path) -> tuple[Tokenizer, list[ShardSet]]:
    """Read the tokenizer and the tokens of both halves."""
    folder = out / "tokenizer"
    found = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    tokenizer = Tokenizer.from_files(found)
    return tokenizer, prepare(sources(plan), tokenizer, out / "data", out)


def _write_sample(plan: Plan, folder: Path) -> None:
    """Write parts of the plan's text, evenly spaced, alternately to each half."""
    files = tuple(str(Path(file).absolute()) for file in plan.data.text)
    size = max(LEAST_BYTES, plan.training.tokens * BYTES_PER_TOKEN)
    # With a few long documents, the halves would differ much in size.
    plain = all(Path(file).suffix == ".txt" for file in files)
    source = SourceSpec("text", files, format="paragraphs" if plain else None)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        paths = [stack.enter_context(whole_file(folder / f"{half[0]}.jsonl")) for half in HALVES]
        opened = [stack.enter_context(path.open("w", encoding="utf-8")) for path in paths]
        for number, text in enumerate(sample([source], Path(), size)):
            opened[number % len(opened)].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def _write_tokenizer(plan: Plan, out: Path) -> None:
    # Variants without a position table would otherwise read longer texts and be compared on different text.
    limit = plan.sizes.tokens
    files = train_tokenizer(_texts(plan, out), "bpe", plan.sizes.vocabulary, max_tokens=limit)
    folder = out / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    # tokenizer.json is written last, because its presence means that the others are complete.
    for name in sorted(files, key="tokenizer.json".__eq__):
        with whole_file(folder / name) as partial:
            partial.write_bytes(files[name])


def _texts(plan: Plan, out: Path) -> Iterator[str]:
    for source in sources(plan):
        yield from documents(source, out)
