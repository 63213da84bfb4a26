"""How the answers to the questions of a file are written: rows, and the files of SQuAD's evaluation."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.files import check_can_write, whole_file
from unmask.cli.items import Item
from unmask.cli.output import json_line, plain, safe
from unmask.cli.tasks.predict import named
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.models.load import Model
    from unmask.tasks.answer import Answers


def check_places(output: Path | None, squad: bool, nbest: Path | None) -> None:
    """Refuse options that do not go together, and an n-best file that cannot be written.

    Raises:
        InvalidRequest: an option needs another one.
        OutputError: the n-best file cannot be written.
    """
    if squad and output is None:
        raise InvalidRequest("--squad writes a file; name it with --output")
    if nbest is not None:
        if not squad:
            raise InvalidRequest("--nbest is a second file beside that of --squad; give --squad too")
        if output is not None and nbest.absolute() == output.absolute():
            raise InvalidRequest(f"--nbest and --output are both {nbest}; name two files")
        check_can_write(nbest)


@dataclass(frozen=True)
class Shown:
    """How the answers to a question are shown."""

    json: bool
    squad: bool
    null_threshold: float

    def row(self, loaded: "Model", item: Item, found: "Answers") -> str:
        """The lines of one question."""
        if self.squad:
            return json_line(self._squad(item, found))
        if self.json:
            return named(loaded, item, **{"id": item.id, "question": item.value, **plain(found)})
        start = safe(item.id)
        if not found.answers:
            null = "" if found.null_score is None else f"\t{found.null_score:.4f}"
            return f"{start}\tno answer{null}\n"
        return "".join(
            f"{start}\t{one.score:.4f}\t{one.start}\t{one.end}\t{safe(one.text)}\n" for one in found.answers
        )

    def _squad(self, item: Item, found: "Answers") -> dict[str, Any]:
        best = [
            {"text": one.text, "probability": one.score, "start": one.start, "end": one.end}
            for one in found.answers
        ]
        null = found.null_score
        answered = best and (null is None or null <= self.null_threshold)
        if null is not None:
            best.append({"text": "", "probability": null, "start": 0, "end": 0})
            best.sort(key=lambda one: -float(str(one["probability"])))
        return {"id": item.id, "text": found.answers[0].text if answered else "", "nbest": best}


def finished(nbest: Path | None) -> Callable[[Path, Path], None]:
    """Makes the file of predictions, and the n-best file if it is named, from the stored rows."""

    def finish(stored: Path, output: Path) -> None:
        if nbest is not None:
            with whole_file(nbest) as whole:
                _write(stored, whole, "nbest")
        _write(stored, output, "text")

    return finish


def _write(stored: Path, output: Path, key: str) -> None:
    """One object from the ids of questions to a value of their rows, without holding more than one row."""
    with output.open("w", encoding="utf-8") as file:
        between = "{\n"
        for row in _rows(stored):
            value = json.dumps(row[key], ensure_ascii=False)
            file.write(f"{between}{json.dumps(row['id'], ensure_ascii=False)}: {value}")
            between = ",\n"
        file.write("\n}\n")


def _rows(stored: Path) -> Iterator[dict[str, Any]]:
    with stored.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
