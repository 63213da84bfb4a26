"""Train the small encoders on which the guided tour shows mechanisms, and write their folders.

    export OMP_NUM_THREADS=1
    python scripts/designs.py --data DATA --ship --designs unordered,alibi,disentangled,windows,local-global
    python scripts/designs.py --data DATA --ship --designs learned,linear --tokens 3200000 --out runs/longer

``DATA`` holds ``gutenberg_books``. Those of one folder are trained alike: the same text, tokenizer and number
of tokens. Positions that are learned from text alone show only after about 1,000,000 of them, so encoders
with such get more. Finished runs are kept, and stopped ones resume.
"""

import argparse
import json
import os
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import torch

from unmask.learn.pretrain import NullCallback, pretrain
from unmask.loaded import load
from unmask.measure.ablation.figures import measure
from unmask.measure.ablation.plan import Data, Effort, Plan, Training, run_table, toml
from unmask.measure.ablation.text import prepare_text
from unmask.measure.ablation.variants import Sizes, build_variant
from unmask.model.families.native import to_config
from unmask.model.spec import EncoderSpec, Rotary, SlidingWindow, SlidingWindowGlobal, SoftmaxAttention

SHIPPED = Path(__file__).parents[1] / "unmask" / "shipped" / "designs"
SIZES = Sizes(tokens=128)
RADIUS = 4
OBJECTIVE = {"kind": "masked", "rate": 0.3, "replacement": "mask"}

CARDS = {
    "unordered": "BERT's architecture without positions: it has no information about word order.",
    "learned": "BERT's architecture: learned absolute positions, softmax attention.",
    "alibi": "A penalty for distance in every score (Press, Smith & Lewis 2022), and no other positions.",
    "disentangled": "Content and distance apart in every score (He et al. 2021).",
    "linear": "Linear attention, elu + 1 (Katharopoulos et al. 2020), with learned absolute positions.",
    "windows": f"Windows of {RADIUS} tokens on each side in all layers (Beltagy, Peters & Cohan 2020), "
    "rotary positions. No token was global in training; a run may make some global.",
    "local-global": f"The first and the fourth layer see all, those between {SIZES.radius} tokens on each "
    "side; rotary positions, norms first, GeGLU (after Warner et al. 2024).",
}
"""All encoders, and the descriptions on their cards."""
CARE = "It learned nothing that frequencies do not tell: use it for what holds with any weights."

LIMITS = (
    "It is there to show one mechanism in a few hundred kilobytes. It is no model of language: it saw too "
    "little text, predicts badly, repeats what old books say, and stands for no larger model with the same "
    "mechanism."
)


def encoder_of(name: str) -> EncoderSpec:
    """The encoder's spec."""
    if name == "unordered":
        made = build_variant("bert", SIZES).encoder
        return replace(made, embedding=replace(made.embedding, positions=None))
    if name == "windows":
        made = build_variant("rotary", SIZES).encoder
        reach = SlidingWindowGlobal(SlidingWindow(RADIUS), own_projections=False)
        layers = []
        for layer in made.layers:
            assert isinstance(layer.mixer, SoftmaxAttention)
            mixer = replace(layer.mixer, reach=reach, position=Rotary(10_000.0))
            layers.append(replace(layer, mixer=mixer))
        return replace(made, layers=tuple(layers))
    return build_variant("bert" if name == "learned" else name, SIZES).encoder


def train(name: str, plan: Plan, out: Path) -> Path:
    """Train or go on; the folder of the trained checkpoint."""
    folder = out / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    table = run_table(plan, "bert", 1) | {
        "name": name,
        "model": {"config": to_config(encoder_of(name))},
        "objective": OBJECTIVE,
    }
    (folder / "run.toml").write_text(toml(table))
    return pretrain(folder / "run.toml", callback=NullCallback()).folder


def finish(name: str, plan: Plan, out: Path) -> None:
    """Train, measure, and write the folder that is shipped: weights in bfloat16 and a card."""
    made = out / "made" / name
    if (made / "README.md").is_file():
        return
    trained = train(name, plan, out)
    load(trained, dtype="bfloat16").save(made)
    found = measure(made, plan)
    assert found.masked_loss is not None
    assert found.unigram_loss is not None
    figures = {"masked_loss": found.masked_loss, "unigram_loss": found.unigram_loss}
    (out / "made" / f"{name}.json").write_text(json.dumps(figures) + "\n")
    (made / "README.md").write_text(card(name, plan, found.masked_loss, found.unigram_loss))


def card(name: str, plan: Plan, loss: float, unigram: float) -> str:
    """What the folder's README.md says."""
    sizes, training = plan.sizes, plan.training
    made = (
        f"{sizes.layers} layers of width {sizes.width} with {sizes.heads} heads, "
        f"{sizes.vocabulary:,} pieces, "
        f"texts of at most {sizes.tokens} tokens; weights in bfloat16. Trained by `scripts/designs.py`: "
        f"{training.tokens:,} tokens in {training.steps:,} steps of {training.batch_tokens} on a sample of "
        "English books first published up to 1895 (public domain), seed 1, 30 % of tokens masked, on one CPU "
        "core."
    )
    scored = (
        f"Masked loss on held-out books: {loss:.2f} nats a token (frequencies of words alone: {unigram:.2f})."
    )
    paragraphs = (CARDS[name], made, f"{scored} {CARE}" if loss > unigram - 0.1 else scored, LIMITS)
    return "\n".join((f"# design/{name}\n", *(f"{textwrap.fill(one, 118)}\n" for one in paragraphs)))


def main() -> None:
    """Everything that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder with gutenberg_books")
    parser.add_argument("--out", type=Path, default=Path("runs/designs"), help="gone on with if there")
    parser.add_argument("--designs", default=",".join(CARDS), help="names with commas")
    parser.add_argument("--tokens", type=int, default=1_600_000, help="of each run")
    parser.add_argument("--ship", action="store_true", help="copy what is finished into the package")
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
    asked.out.mkdir(parents=True, exist_ok=True)
    prepare_text(plan, asked.out, print)
    for name in asked.designs.split(","):
        print(name, flush=True)
        finish(name, plan, asked.out)
        if asked.ship:
            shutil.copytree(asked.out / "made" / name, SHIPPED / name, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
