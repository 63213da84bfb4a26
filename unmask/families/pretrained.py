"""How published checkpoints were pretrained, which their specs do not say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pretraining:
    """The objective of a checkpoint, and how its tokens were masked."""

    objective: str
    masking: str


_BERT = "80 % [MASK], 10 % random, 10 % kept"

PRETRAINING: dict[str, Pretraining] = {
    "google-bert/": Pretraining(
        "masked language modeling, next sentence prediction", f"15 % ({_BERT}), in ten static ways"
    ),
    "FacebookAI/roberta": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), drawn anew for every pass"
    ),
    "albert/": Pretraining(
        "masked language modeling, sentence order prediction", f"15 % ({_BERT}), n-grams of at most 3 words"
    ),
    "google/electra-small-discriminator": Pretraining(
        "replaced token detection", "15 %, replaced by a generator"
    ),
    "google/electra-base-discriminator": Pretraining(
        "replaced token detection", "15 %, replaced by a generator"
    ),
    "google/electra-large-discriminator": Pretraining(
        "replaced token detection", "25 %, replaced by a generator"
    ),
    "distilbert/distilbert-base-uncased": Pretraining(
        "distillation from BERT, masked language modeling", f"15 % ({_BERT}), drawn anew for every pass"
    ),
    "allenai/longformer": Pretraining("masked language modeling, begun with RoBERTa", f"15 % ({_BERT})"),
    "google/bigbird-roberta": Pretraining("masked language modeling", f"15 % of words ({_BERT})"),
    "microsoft/deberta-base": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), spans of at most 3 tokens"
    ),
    "microsoft/deberta-large": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), spans of at most 3 tokens"
    ),
    "microsoft/deberta-v2": Pretraining(
        "masked language modeling", f"15 % ({_BERT}), spans of at most 3 tokens"
    ),
    "microsoft/deberta-v3": Pretraining(
        "replaced token detection", "replaced by a generator, which reads [MASK] only"
    ),
    "microsoft/mdeberta-v3": Pretraining(
        "replaced token detection", "replaced by a generator, which reads [MASK] only"
    ),
    "facebook/esm": Pretraining("masked language modeling", f"15 % ({_BERT})"),
    "mosaicml/": Pretraining("masked language modeling", f"30 % ({_BERT})"),
    "answerdotai/ModernBERT": Pretraining("masked language modeling", f"30 % ({_BERT})"),
    "jhu-clsp/ettin-encoder": Pretraining("masked language modeling", "30 %, 15 % in the decay phase"),
    "chandar-lab/NeoBERT": Pretraining("masked language modeling", "20 % (100 % [MASK])"),
    "unmask-mini": Pretraining("masked language modeling", "30 % at first, 15 % at last"),
}
"""By the beginning of the checkpoint's name. Sources: `recipes/*/published*.toml`, which follow the authors'
papers and code, and the papers of ELECTRA, NeoBERT, Ettin and ESM."""


def find_pretraining(name: str) -> Pretraining | None:
    """How a published checkpoint was pretrained; None if it is not recorded here."""
    return next((pretraining for start, pretraining in PRETRAINING.items() if name.startswith(start)), None)
