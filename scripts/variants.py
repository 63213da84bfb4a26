"""Train the small encoders on which the guided tour shows mechanisms, and write their folders.

    export OMP_NUM_THREADS=1
    python scripts/variants.py --data DATA --ship --variants unordered,alibi,disentangled,windows,local-global
    python scripts/variants.py --data DATA --ship --variants learned,linear --tokens 3200000 --output runs/b

``DATA`` contains ``gutenberg_books``. All encoders of one output folder are trained on the same text, with
the same tokenizer and number of tokens. Learned absolute positions take effect only after about 1,000,000
tokens, so encoders with learned positions are trained on more. Finished runs are kept, and stopped runs are
resumed.
"""

import argparse
import json
import os
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.ablation.figures import measure
from benchmarks.ablation.plan import Data, Effort, Plan, Training, run_table, toml
from benchmarks.ablation.text import prepare_text
from benchmarks.ablation.variants import Sizes, build_variant
from unmask.families.native import to_config
from unmask.models.load import load
from unmask.spec import EncoderSpec, Rotary, SlidingWindow, SlidingWindowGlobal, SoftmaxAttention
from unmask.training.pretrain import Callback, pretrain

SHIPPED = Path(__file__).parents[1] / "models" / "unmask_models" / "variants"
SIZES = Sizes(tokens=128)
RADIUS = 4
OBJECTIVE = {"kind": "masked", "rate": 0.3, "replacement": "mask"}

CARDS = {
    "unordered": "BERT's architecture without positions: it has no information about word order.",
    "learned": "BERT's architecture: learned absolute positions, softmax attention.",
    "alibi": "ALiBi: every score has a penalty that grows with distance (Press, Smith & Lewis 2022); "
    "there are no other positions.",
    "disentangled": "Disentangled attention: every score adds separate terms for content and distance "
    "(He et al. 2021).",
    "linear": "Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020), and learned "
    "absolute positions.",
    "windows": f"Sliding windows of {RADIUS} tokens on each side in all layers (Beltagy, Peters & Cohan "
    "2020), and rotary positions. No token was global in training; tokens can be made global when it runs.",
    "local-global": f"The first and the fourth layer use full attention, the layers between them sliding "
    f"windows of {SIZES.radius} tokens on each side; rotary positions, pre-normalization and GeGLU, as in "
    "ModernBERT (Warner et al. 2024).",
}
"""All encoders, and the descriptions on their cards."""
CARE = "It learned no more than word frequencies: use it only for what is true of any weights."

LIMITS = (
    "It demonstrates one mechanism in a few hundred kilobytes. It is not a useful language model: it was "
    "trained on too little text, predicts badly, reproduces the views of old books, and does not represent "
    "larger models with the same mechanism."
)


def encoder_of(name: str) -> EncoderSpec:
    """The encoder's spec."""
    if name == "unordered":
        encoder = build_variant("bert", SIZES).encoder
        return replace(encoder, embedding=replace(encoder.embedding, positions=None))
    if name == "windows":
        encoder = build_variant("rotary", SIZES).encoder
        pattern = SlidingWindowGlobal(SlidingWindow(RADIUS), own_projections=False)
        layers = []
        for layer in encoder.layers:
            assert isinstance(layer.mixer, SoftmaxAttention)
            mixer = replace(layer.mixer, pattern=pattern, position=Rotary(10_000.0))
            layers.append(replace(layer, mixer=mixer))
        return replace(encoder, layers=tuple(layers))
    return build_variant("bert" if name == "learned" else name, SIZES).encoder


def train(name: str, plan: Plan, out: Path) -> Path:
    """Train the encoder, or resume its training; returns the folder of the trained checkpoint."""
    folder = out / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    table = run_table(plan, "bert", 1) | {
        "name": name,
        "model": {"config": to_config(encoder_of(name))},
        "objective": OBJECTIVE,
    }
    (folder / "run.toml").write_text(toml(table))
    return pretrain(folder / "run.toml", callback=Callback()).folder


def finish(name: str, plan: Plan, out: Path) -> None:
    """Train, measure, and write the folder to ship: weights in bfloat16 and a model card."""
    folder = out / "made" / name
    if (folder / "README.md").is_file():
        return
    trained = train(name, plan, out)
    load(trained, dtype="bfloat16").save(folder)
    report = measure(folder, plan)
    assert report.masked_loss is not None
    assert report.unigram_loss is not None
    figures = {"masked_loss": report.masked_loss, "unigram_loss": report.unigram_loss}
    (out / "made" / f"{name}.json").write_text(json.dumps(figures) + "\n")
    (folder / "README.md").write_text(card(name, plan, report.masked_loss, report.unigram_loss))


def card(name: str, plan: Plan, loss: float, unigram: float) -> str:
    """The text of the folder's README.md."""
    sizes, training = plan.sizes, plan.training
    facts = (
        f"{sizes.layers} layers of width {sizes.width} with {sizes.heads} heads, "
        f"a vocabulary of {sizes.vocabulary:,} tokens, texts of at most {sizes.tokens} tokens; weights in "
        "bfloat16. Trained by `scripts/variants.py`: "
        f"{training.tokens:,} tokens in {training.steps:,} steps of {training.batch_tokens} on a sample of "
        "English books first published up to 1895 (public domain), seed 1, 30 % of tokens masked, on one CPU "
        "core."
    )
    scored = (
        f"Masked loss on held-out books: {loss:.2f} nats per token (word frequencies alone: {unigram:.2f})."
    )
    paragraphs = (CARDS[name], facts, f"{scored} {CARE}" if loss > unigram - 0.1 else scored, LIMITS)
    return "\n".join(
        (f"# variant/{name}\n", *(f"{textwrap.fill(paragraph, 118)}\n" for paragraph in paragraphs))
    )


def main() -> None:
    """Train the encoders that the arguments name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with gutenberg_books")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/variants"), help="an existing folder is resumed"
    )
    parser.add_argument("--variants", default=",".join(CARDS), help="names separated by commas")
    parser.add_argument("--tokens", type=int, default=1_600_000, help="training tokens per run")
    parser.add_argument("--ship", action="store_true", help="copy finished encoders into the package")
    asked = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    books = asked.data / "gutenberg_books"
    texts = tuple(str(path) for path in sorted(books.glob("books-0*.jsonl.xz")))
    plan = Plan(
        Data(texts, str(books / "books-valid.jsonl.xz")),
        SIZES,
        Training(tokens=asked.tokens),
        Effort(windows=300),
    )
    asked.output.mkdir(parents=True, exist_ok=True)
    prepare_text(plan, asked.output, print)
    for name in asked.variants.split(","):
        print(name, flush=True)
        finish(name, plan, asked.output)
        if asked.ship:
            shutil.copytree(asked.output / "made" / name, SHIPPED / name, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
