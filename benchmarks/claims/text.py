"""Small encoders trained by masked language modeling on textbooks, and their loss at several lengths.

The loss is measured on the same masked tokens at every length: held-out text is cut into blocks of `LONGEST`
tokens, 15 % of which are masked once, and a block is read whole or in shorter windows.

Axes: B blocks, N tokens of a block, W windows of a block, T tokens of all windows, M masked tokens, D width.
"""

import json
import lzma
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

import unmask
from benchmarks.ablation.budget import body_parameters
from benchmarks.claims import states
from benchmarks.claims.probe import Tagging, speed
from benchmarks.claims.variants import POSITIONS, SIZES, TEACHERS, VARIANTS, Variant, rescaled
from unmask.base.files import whole_file
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.evaluate.probes.perplexity import unigram
from unmask.families.native import to_config
from unmask.text import PackedBatch, Tokenizer
from unmask.training.data.train_tokenizer import train_tokenizer
from unmask.training.objectives.build import build_objective
from unmask.training.run.flops import Work
from unmask.training.vocabulary import Vocabulary
from unmask.weights import find, read_checkpoint
from unmask.weights.build import build

HELD_OUT = "held-out.npy"
SPECIAL = 2
"""Special tokens around every text."""
TRAINED = SIZES.tokens - SPECIAL
TIMES = (1, 2, 4, 8, 16)
"""Lengths that are evaluated, in multiples of the trained one."""
LONGEST = TRAINED * TIMES[-1]
BLOCKS = 24
MASKED_SHARE = 0.15
BATCH = 1024
"""Tokens per step."""
MUCH_BYTES = 8_000_000
"""Training text: about 2 million tokens, of which a run with the default budget reads no part twice."""
LITTLE_TOKENS = 125_000
"""The text of variants that read little text many times."""
PART = 2000
"""Characters of each module in that text."""
TOKENIZER_BYTES = 3_000_000
TREEBANK = "ud_ewt"
SPEED_WINDOWS = 64
"""Windows that are read at once where speed is measured."""


def prepare(data: Path, work: Path) -> Path:
    """Write the training texts, the tokenizer and the held-out text, unless they are there."""
    folder = work / "text"
    if (folder / HELD_OUT).is_file():
        return folder
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    train = list(modules(data, "train"))
    random.Random(0).shuffle(train)
    sample = taken(train, TOKENIZER_BYTES)
    files = train_tokenizer(sample, "bpe", SIZES.vocabulary, max_tokens=LONGEST + SPECIAL)
    for name, content in files.items():
        (folder / "tokenizer" / name).write_bytes(content)
    tokenizer = Tokenizer.from_files(files)
    write_texts(folder / "much.jsonl", taken(train, MUCH_BYTES))
    write_texts(folder / "little.jsonl", first_tokens(tokenizer, train, LITTLE_TOKENS))
    blocks: list[NDArray[np.int64]] = []
    for text in modules(data, "dev"):
        ids = tokenizer.encode(text).ids[1:-1]
        if len(ids) >= LONGEST:
            blocks.append(ids[:LONGEST])
        if len(blocks) == BLOCKS:
            break
    with whole_file(folder / HELD_OUT) as partial, partial.open("wb") as file:
        np.save(file, np.stack(blocks))
    return folder


def modules(data: Path, split: str) -> Iterator[str]:
    """Texts of the textbook modules of a split."""
    path = data / "openstax" / "openstax_ccby.jsonl.xz"
    if not path.is_file():
        raise InvalidRequest(f"{path} does not exist; name the folder that holds the text with --data")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["split"] == split:
                yield row["text"]


def taken(texts: list[str], size: int) -> list[str]:
    """The first texts with at least ``size`` bytes together."""
    made, have = [], 0
    for text in texts:
        if have >= size:
            break
        made.append(text)
        have += len(text.encode())
    return made


def first_tokens(tokenizer: Tokenizer, texts: list[str], tokens: int) -> list[str]:
    """The first texts with about ``tokens`` tokens; each is cut to its first paragraphs, for variety."""
    made, have = [], 0
    for text in texts:
        if have >= tokens:
            break
        made.append(text[:PART])
        have += len(tokenizer.encode(text[:PART]).ids)
    return made


def write_texts(path: Path, texts: list[str]) -> None:
    """One JSON object per text."""
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def run_table(variant: Variant, name: str, seed: int, tokens: int, folder: Path) -> dict[str, Any]:
    """The run file of a variant, in a folder below that of the text."""
    pairs = variant.objective["kind"] == "sentence_pairs"
    source = "little" if variant.repeated else "much"
    return {
        "name": f"{name}-{seed}",
        "steps": tokens // BATCH,
        "seed": seed,
        "device": "cpu",
        "model": {"config": to_config(variant.encoder)},
        "tokenizer": {"folder": "../tokenizer"},
        "data": {
            "cache": "../data",
            "sources": [
                {
                    "name": f"{source}{'-pairs' if pairs else ''}",
                    "files": [f"../{source}.jsonl"],
                    "max_tokens": TRAINED - pairs,
                }
            ],
        },
        "objective": objective_of(variant, folder, seed),
        "batch": {"tokens": BATCH, "micro_tokens": BATCH},
        "optimizer": {
            "kind": "muon",
            "learning_rate": 3e-3,
            "muon_learning_rate": 5e-3,
            "weight_decay": 0.05,
        },
        "schedule": {"kind": "wsd", "warmup_share": 0.05, "decay_share": 0.4},
        "checkpoints": {"every": max(1, tokens // BATCH // 5), "minutes": 0, "keep": 1},
    }


def run(name: str, seed: int, tokens: int, data: Path, work: Path) -> tuple[float, dict[str, float]]:
    """Train, or resume, and measure; 0 tokens: random weights."""
    variant = VARIANTS[name]
    folder = prepare(data, work)
    seconds = 0.0
    if tokens:
        if variant.teacher is not None:
            trained(variant.teacher, seed, tokens, folder)
        seconds, encoder = trained(name, seed, tokens, folder)
    else:
        torch.manual_seed(seed)
        encoder = Encoder(variant.encoder).eval()
    held_out = HeldOut.read(folder)
    figures = states.figures(held_out.states(encoder))
    if "masked" in encoder.heads:
        figures |= held_out.losses(encoder, TIMES if name in POSITIONS else TIMES[:1])
    figures["unigram"] = held_out.unigram()
    figures |= Tagging.read(data / TREEBANK, tokenizer_of(folder), SIZES.tokens).figures(encoder)
    figures |= speed(encoder, Encoder(VARIANTS["rotary"].encoder).eval(), held_out.windows(SPEED_WINDOWS))
    figures["parameters"] = body_parameters(variant.encoder)
    figures["operations"] = operations(variant, folder, seed) * tokens
    figures["seconds"] = seconds
    if tokens and name not in TEACHERS:
        shutil.rmtree(folder / f"{name}-{seed}")
    return seconds, figures


def trained(name: str, seed: int, tokens: int, folder: Path) -> tuple[float, Encoder]:
    """Train a variant, unless it is there; the seconds of CPU time that it took now, and the encoder."""
    out = folder / f"{name}-{seed}"
    start = time.process_time()
    if not (out / "model").is_dir():
        unmask.train(run_table(VARIANTS[name], name, seed, tokens, folder), base=out)
    return time.process_time() - start, build(read_checkpoint(find(str(out / "model")))).eval()


def objective_of(variant: Variant, folder: Path, seed: int) -> dict[str, Any]:
    """The table of a variant's objective, with its teacher of the same seed."""
    teacher = (
        {} if variant.teacher is None else {"teacher": str(folder / f"{variant.teacher}-{seed}" / "model")}
    )
    return {**variant.objective, **teacher}


def operations(variant: Variant, folder: Path, seed: int) -> float:
    """Floating-point operations of training by token, in units of 10^9; see `unmask.training.run.flops`."""
    vocabulary = Vocabulary.of(tokenizer_of(folder))
    objective = build_objective(objective_of(variant, folder, seed), Encoder(variant.encoder), vocabulary)
    rate = variant.objective.get("masking", variant.objective)["rate"]
    texts = BATCH // SIZES.tokens
    lengths_S = np.full(texts, SIZES.tokens)
    return Work(objective).of(lengths_S, round(rate * TRAINED * texts)) / BATCH / 1e9


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer that `prepare` trained."""
    return Tokenizer.from_files({path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()})


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Blocks of held-out text and the tokens that are masked in them: the same ones at every length."""

    ids_BN: NDArray[np.int64]
    masked_BN: NDArray[np.bool_]
    cls_id: int
    sep_id: int
    mask_id: int

    @classmethod
    def read(cls, folder: Path) -> "HeldOut":
        """Read the blocks that `prepare` wrote, and draw their masks."""
        ids_BN = np.load(folder / HELD_OUT)
        masked_BN = np.random.default_rng(0).random(ids_BN.shape) < MASKED_SHARE
        tokenizer = tokenizer_of(folder)
        cls_id, sep_id = tokenizer.encode("a").ids[[0, -1]].tolist()
        assert tokenizer.mask_id is not None
        return cls(ids_BN, masked_BN, cls_id, sep_id, tokenizer.mask_id)

    @torch.inference_mode()
    def loss(self, encoder: Encoder, times: int) -> float:
        """Mean -log p of the masked tokens, in nats, read in windows of ``times`` the trained length."""
        size, total, edges = TRAINED * times, 0.0, ((0, 0), (1, 1))
        special = ((0, 0), (self.cls_id, self.sep_id))
        for ids_N, masked_N in zip(self.ids_BN, self.masked_BN, strict=True):
            read_WN = np.where(masked_N, self.mask_id, ids_N).reshape(-1, size)
            batch = PackedBatch.of_ids(list(np.pad(read_WN, edges, constant_values=special)))
            masked_T = np.pad(masked_N.reshape(-1, size), edges).reshape(-1)
            x_MD = encoder.encode(batch)[torch.from_numpy(masked_T)]
            logits_MV = encoder.logits("masked", x_MD, batch.layout)
            targets_M = torch.from_numpy(ids_N[masked_N])
            total += float(functional.cross_entropy(logits_MV, targets_M, reduction="sum"))
        return total / int(self.masked_BN.sum())

    def losses(self, encoder: Encoder, every: Sequence[int]) -> dict[str, float]:
        """The loss at these multiples of the trained length, also with rotary positions changed for it."""
        made = {}
        for times in every:
            made[f"loss@{times}"] = self.loss(encoder, times)
            for kind, spec in rescaled(encoder.spec, times).items() if times > 1 else ():
                changed = Encoder(spec).eval()
                changed.load_state_dict(encoder.state_dict())
                made[f"{kind}@{times}"] = self.loss(changed, times)
        return made

    def windows(self, count: int | None = None) -> PackedBatch:
        """The first windows of the trained length, without masks."""
        edges, special = ((0, 0), (1, 1)), ((0, 0), (self.cls_id, self.sep_id))
        read_WN = self.ids_BN.reshape(-1, TRAINED)[:count]
        return PackedBatch.of_ids(list(np.pad(read_WN, edges, constant_values=special)))

    def states(self, encoder: Encoder) -> list[NDArray[np.float32]]:
        """States of every layer at the same tokens without masks, one drawn for each word, (M, D) each."""
        batch = self.windows()
        read_T = batch.ids_T
        inside_T = np.ones((len(self.ids_BN) * TIMES[-1], TRAINED), np.bool_)
        inside_T = np.pad(inside_T, ((0, 0), (1, 1))).reshape(-1)
        chosen_T = np.random.default_rng(1).permutation(np.flatnonzero(inside_T))
        _, first_M = np.unique(read_T[chosen_T], return_index=True)
        chosen_M = chosen_T[first_M]
        every = states.layer_states(encoder, batch)
        return [x_TD[torch.from_numpy(chosen_M)].numpy() for x_TD in every]

    def unigram(self) -> float:
        """The loss of predicting by the frequency of tokens in this text itself, with add-one smoothing."""
        return unigram(self.ids_BN.reshape(-1), self.ids_BN[self.masked_BN], SIZES.vocabulary)[0]
