"""Fine-tuning on tasks of GLUE here and with transformers' Trainer, under BERT's protocol, seed by seed.

Both start from the same checkpoint and, for each seed, from the same weights of the new head; they have the
same batch size, number of epochs, learning rate, linear schedule, warm-up, weight decay, clipping and longest
text. The order of texts and dropout are drawn by each library itself, so scores agree in distribution only.

Each finished run is appended as a line to a file, so that the comparison can be continued later:

    python benchmarks/parity.py --data glue/ --seeds 1,2,3 --results parity.jsonl --max-minutes 20
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy import stats

import unmask
from unmask.evaluate.protocols.protocols import read_protocol
from unmask.evaluate.protocols.runs import official_files, run_settings
from unmask.training.finetune.examples import Counts, Preparation, labels_of
from unmask.training.finetune.metrics import class_figures, number_figures
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.start import task_checkpoint, task_encoder
from unmask.training.run.base_model import first_checkpoint
from unmask.weights.write.save import save

TASKS = ("mrpc", "rte", "stsb", "cola")
SIDES = ("ours", "theirs")


def start(settings: FinetuneSettings, records: Sequence[Labeled], folder: Path) -> None:
    """Write the checkpoint that both start from: the encoder with the head of this seed."""
    begun = first_checkpoint(settings, Path())
    checkpoint = task_checkpoint(settings, begun, labels_of(records, settings))
    save(task_encoder(settings, checkpoint, begun, lambda _: None), checkpoint, folder)


def ours(
    settings: FinetuneSettings, folder: Path, work: Path, steps: int | None
) -> tuple[dict[str, float], float]:
    """Figures on dev, and seconds per step, here."""
    few = settings if steps is None else replace(settings, epochs=steps / _steps_per_epoch(settings))
    started = replace(few, model=replace(few.model, start_from=str(folder)), out=str(work))
    clock = Clock()
    result = finetune(started, base=work.parent, callback=clock)
    return {name.removeprefix("dev/"): one for name, one in result.dev.items()}, clock.per_step()


class Clock:
    """Seconds between the first step and the last."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def say(self, sentence: str) -> None:
        """Nothing."""

    def tokenizing(self, source: str, documents: int, tokens: int) -> None:
        """Nothing."""

    def step(self, figures: Mapping[str, float]) -> None:
        """A step is done."""
        self.times.append(time.perf_counter())

    def per_step(self) -> float:
        """The median, which evaluations and checkpoints do not move."""
        return float(np.median(np.diff(self.times))) if len(self.times) > 1 else float("nan")


class TrainerClock(transformers.TrainerCallback):  # type: ignore[misc]
    """The same of the Trainer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step is done."""
        self.clock.step({})


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Tokenized texts with their labels."""

    def __init__(self, records: Sequence[Labeled], settings: FinetuneSettings, folder: Path) -> None:
        model = unmask.load(folder)
        tokens = settings.data.max_tokens
        preparation = Preparation(
            settings,
            labels_of(records, settings),
            model.tokenizer,
            model.spec,
            min(tokens or 512, model.max_tokens or 512),
        )
        self.rows = [
            {
                "input_ids": item.ids.tolist(),
                "token_type_ids": item.token_type_ids.tolist(),
                "labels": float(item.target[0]) if settings.task == "regression" else int(item.target),
            }
            for item in preparation.items(preparation.examples(records, Counts()))
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def trainer(
    settings: FinetuneSettings,
    train: torch.utils.data.Dataset[dict[str, Any]],
    folder: Path,
    work: Path,
    *,
    steps: int | None,
    callback: transformers.TrainerCallback,
    order: str = "random",
) -> transformers.Trainer:
    """The Trainer with the same settings; ``order`` is its sampling strategy."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    optimizer, schedule = settings.optimizer, settings.schedule
    total = steps or round(settings.epochs * -(-len(train) // settings.batch_size))
    warmup = (
        schedule.warmup_steps
        if schedule.warmup_steps is not None
        else round((schedule.warmup_share or 0) * total)
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(work),
        seed=settings.seed,
        per_device_train_batch_size=settings.batch_size,
        num_train_epochs=settings.epochs,
        max_steps=steps or -1,
        learning_rate=optimizer.learning_rate,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.clip or 0.0,
        lr_scheduler_type="linear",
        warmup_steps=warmup,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=settings.device == "cpu",
        bf16=settings.precision == "autocast",
        train_sampling_strategy=order,
    )
    collate = transformers.DataCollatorWithPadding(tokenizer)
    run = transformers.Trainer(
        model, arguments, train_dataset=train, data_collator=collate, callbacks=[callback]
    )
    run.remove_callback(transformers.PrinterCallback)
    return run


def theirs(
    settings: FinetuneSettings, folder: Path, work: Path, steps: int | None
) -> tuple[dict[str, float], float]:
    """Figures on dev, and seconds per step, with the Trainer."""
    train, dev = (
        Rows(list(read_labeled(names, settings.data, Path())), settings, folder)
        for names in (settings.data.train, settings.data.dev)
    )
    clock = Clock()
    run = trainer(settings, train, folder, work, steps=steps, callback=TrainerClock(clock))
    run.train()
    found = np.asarray(run.predict(dev).predictions)
    gold = np.array([row["labels"] for row in dev.rows])
    if settings.task == "regression":
        return number_figures(gold, found[:, 0]), clock.per_step()
    return class_figures(gold, found.argmax(-1), settings.data.labels), clock.per_step()


def _steps_per_epoch(settings: FinetuneSettings) -> int:
    texts = sum(1 for _ in read_labeled(settings.data.train, settings.data, Path()))
    return -(-texts // settings.batch_size)


def run_pair(options: argparse.Namespace, task: str, seed: int, side: str) -> dict[str, Any]:
    """One finished run as a line of the results."""
    protocol = read_protocol("run_glue")
    files = official_files(protocol.tasks[task], Path(options.data))
    if isinstance(files, str):
        raise SystemExit(f"{options.data} has no {files}")
    model = str(Path(options.model).resolve()) if Path(options.model).is_dir() else options.model
    settings = run_settings(
        protocol, task, files, model=model, seed=seed, values={}, out="run", device=options.device
    )
    settings = replace(settings, precision=options.precision, log=replace(settings.log, every=1))
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        start(settings, list(read_labeled(settings.data.train, settings.data, Path())), work / "start")
        run = ours if side == "ours" else theirs
        figures, seconds = run(settings, work / "start", work / side, options.steps)
    return {
        "task": task, "seed": seed, "side": side, "model": options.model, "steps": options.steps,
        "precision": options.precision, "figures": figures, "seconds_per_step": seconds,
    }  # fmt: skip


def done_runs(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The finished runs of the same model and length; a line that was cut off is left out."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if all(one[name] == getattr(options, name) for name in ("model", "steps", "precision")):
            found.append(one)
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean by Student's t; unbounded for a single value."""
    if len(values) < 2:
        return float("-inf"), float("inf")
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def compared(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each metric of each task: means, deviations, intervals; is ours within theirs?"""
    rows = []
    for task in TASKS:
        one = read_protocol("run_glue").tasks[task]
        some = {side: [run for run in runs if (run["task"], run["side"]) == (task, side)] for side in SIDES}
        if not all(some.values()):
            continue
        for name, key in one.metrics.items():
            row: dict[str, Any] = {"metric": f"{one.title} {name}"}
            for side in SIDES:
                values = [run["figures"][key] for run in some[side]]
                row[side] = {
                    "seeds": len(values),
                    "mean": statistics.fmean(values),
                    "deviation": statistics.stdev(values) if len(values) > 1 else None,
                    "interval": interval(values),
                    "seconds_per_step": statistics.median(run["seconds_per_step"] for run in some[side]),
                }
            low, high = row["theirs"]["interval"]
            row["ours_within_theirs"] = low <= row["ours"]["mean"] <= high
            rows.append(row)
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as lines."""
    for row in rows:
        parts = []
        for side in SIDES:
            one = row[side]
            deviation = "" if one["deviation"] is None else f" ± {one['deviation']:.4f}"
            low, high = one["interval"]
            parts.append(
                f"{side} {one['mean']:.4f}{deviation} [{low:.4f}, {high:.4f}] of {one['seeds']} seeds, "
                f"{one['seconds_per_step']:.3f} s per step"
            )
        within = "within" if row["ours_within_theirs"] else "OUTSIDE"
        print(f"{row['metric']}: {'; '.join(parts)}; ours is {within} their interval")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", required=True, help="the folder with GLUE's files")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--results", type=Path, required=True, help="a line of JSON for each finished run")
    parser.add_argument(
        "--max-minutes", type=float, default=float("inf"), help="start no run after this time"
    )
    parser.add_argument("--steps", type=int, help="only so many steps, to try the program out")
    parser.add_argument("--precision", choices=("float32", "autocast"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    begun = time.monotonic()
    runs = done_runs(options.results, options)
    seeds = [int(one) for one in options.seeds.split(",")]
    # Seed by seed, so that a part of the work is already a fair comparison.
    for seed in seeds:
        for task in options.tasks.split(","):
            for side in SIDES:
                if any((one["task"], one["seed"], one["side"]) == (task, seed, side) for one in runs):
                    continue
                if time.monotonic() - begun > options.max_minutes * 60:
                    break
                runs.append(run_pair(options, task, seed, side))
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(f"{task}, seed {seed}, {side}: finished", flush=True)
    show(compared(runs))


if __name__ == "__main__":
    main()
