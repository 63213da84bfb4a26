"""Training steps here and with transformers' Trainer with nothing left to chance, on tasks of GLUE.

Both start from the same weights, without dropout, and read the same texts in the same batches under BERT's
protocol in float32. The losses of all steps are compared, and the logits on dev afterwards. Differences come
from the order of summation alone, and grow from step to step as training amplifies them.

    python benchmarks/parity_exact.py --data glue/ --steps 60
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from parity import TASKS, Rows, start, trainer

from unmask.base.checksums import CHECKSUMS
from unmask.evaluate.protocols.protocols import read_protocol
from unmask.evaluate.protocols.runs import official_files, run_settings
from unmask.training.data.labeled import LabeledBatches
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.run import finetune


class Losses(transformers.TrainerCallback):  # type: ignore[misc]
    """The loss of every step of a run of either library."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def say(self, sentence: str) -> None:
        """Nothing."""

    def tokenizing(self, source: str, documents: int, tokens: int) -> None:
        """Nothing."""

    def step(self, figures: Mapping[str, float]) -> None:
        """A step here."""
        self.values.append(figures["classification/loss"])

    def on_log(self, *_: Any, logs: Mapping[str, Any], **__: Any) -> None:
        """A step of the Trainer, which logs a loss after each."""
        if "loss" in logs:
            self.values.append(float(logs["loss"]))


def without_dropout(folder: Path) -> None:
    """Set all rates of a checkpoint's config to 0."""
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8"))
    changed = {name: 0.0 for name in config if name.endswith(("dropout", "dropout_prob"))}
    assert {"hidden_dropout_prob", "attention_probs_dropout_prob"} <= changed.keys(), config
    file.write_text(json.dumps({**config, **changed}), "utf-8")
    (folder / CHECKSUMS).unlink()  # of the config as it was


def compared(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """Both runs of a task."""
    protocol = read_protocol("run_glue")
    files = official_files(protocol.tasks[task], Path(options.data))
    if isinstance(files, str):
        raise SystemExit(f"{options.data} has no {files}")
    settings = run_settings(
        protocol, task, files, model=options.model, seed=options.seed, values={}, out="run", device="cpu"
    )
    records, dev_records = (
        list(read_labeled(names, settings.data, Path())) for names in (settings.data.train, settings.data.dev)
    )
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        first = work / "start"
        start(settings, records, first)
        without_dropout(first)
        rows, dev = (Rows(some, settings, first) for some in (records, dev_records))
        per_epoch = len(rows) // settings.batch_size
        if options.steps > per_epoch:
            raise SystemExit(f"{task} has {per_epoch} whole batches; ask for at most so many steps")

        ours = Losses()
        few = replace(
            settings,
            epochs=options.steps / -(-len(rows) // settings.batch_size),
            model=replace(settings.model, start_from=str(first), head_dropout=0.0),
            out=str(work / "ours"),
            log=replace(settings.log, every=1),
        )
        result = finetune(few, base=work, callback=ours)

        # The batches that were read here, as a data set to be read in order.
        order = LabeledBatches(range(len(rows)), batch_size=settings.batch_size, seed=settings.seed)  # type: ignore[arg-type]
        places = order.order_of(0)[: options.steps * settings.batch_size]
        rows.rows = [rows.rows[place] for place in places]
        theirs = Losses()
        run = trainer(
            few, rows, first, work / "theirs", steps=options.steps, callback=theirs, order="sequential"
        )
        run.train()
        logits = np.asarray(run.predict(dev).predictions)  # type: ignore[arg-type]
        found = ours_on_dev(result.folder, dev)
    apart = np.abs(np.array(ours.values) - np.array(theirs.values[: len(ours.values)]))
    return {
        "task": task,
        "steps": len(ours.values),
        "first_loss": ours.values[0],
        "last_loss": ours.values[-1],
        "largest_difference_of_losses": float(apart.max()),
        "largest_difference_of_logits": float(np.abs(found - logits).max()),
        "spread_of_logits": float(logits.std()),
        "equal_labels": None if logits.shape[1] == 1 else float((found.argmax(1) == logits.argmax(1)).mean()),
    }


def ours_on_dev(folder: Path, dev: Rows) -> Any:
    """The logits of a checkpoint on rows of ids, by transformers, which reads what was saved here."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    collate = transformers.DataCollatorWithPadding(transformers.AutoTokenizer.from_pretrained(folder))
    found = []
    with torch.no_grad():
        for place in range(0, len(dev), 32):
            batch = collate(dev.rows[place : place + 32])
            batch.pop("labels")
            found.append(model(**batch).logits)
    return torch.cat(found).numpy()


def main() -> None:
    """Compare the tasks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", required=True, help="the folder with GLUE's files")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for task in options.tasks.split(","):
        print(json.dumps(compared(options, task)), flush=True)


if __name__ == "__main__":
    main()
