"""What is benchmarked: texts, and a checkpoint with real weights or random ones in a published architecture.

A model is always a folder, so that other libraries load the same weights. Speed does not depend on the values
of weights; the error of a narrow format does, so `accuracy` means little on random weights.
"""

import itertools
import lzma
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, InvalidText
from unmask.families import Family, find_architecture
from unmask.families.native import NATIVE
from unmask.spec import CausalAttention, EncoderSpec, FullAttention, PooledVector, SoftmaxAttention
from unmask.spec.describe import describe_pattern
from unmask.spec.encoder import require_layers
from unmask.spec.shapes import parameter_count
from unmask.text import Tokenizer, read_lines
from unmask.weights import Source, find, read_checkpoint
from unmask.weights.heads.embedding_head import write_head
from unmask.weights.heads.sentence_modules import to_json
from unmask.weights.tensors import WEIGHTS
from unmask.weights.write.save import their_tensors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = tuple(a + b for a in "bcdfghjklmnprstvwxyz" for b in "aeiou")


def invented_lines(tokenizer: Tokenizer, seed: int, count: int = 4096) -> list[str]:
    """Lines of random words of the vocabulary, eight each, for a run without a file of texts."""
    marks = ("Ġ", "▁")
    pieces = [tokenizer.engine.id_to_token(i) or "" for i in range(tokenizer.vocabulary_size)]
    plain = [piece.lstrip("".join(marks)) for piece in pieces if not piece.startswith("##")]
    words = sorted({piece for piece in plain if piece.isascii() and piece.isalpha() and piece.islower()})
    rng = np.random.default_rng(seed)
    long_enough = np.array([word for word in words if len(word) > 2] or words or ["a"])
    return [" ".join(row) for row in long_enough[rng.integers(len(long_enough), size=(count, 8))].tolist()]


def lines_of(path: Path) -> list[str]:
    """The lines of a file that hold text.

    Raises:
        InvalidText: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            return [line.text for line in read_lines(stream, str(path), blank="skip")]
    except OSError as error:
        raise InvalidText(f"cannot read {path}: {error.strerror}") from None


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with human similarity ratings from 0 to 5."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    scores: tuple[float, ...]


def sts_b(data: Path) -> ScoredPairs:
    """The test part of STS-B (Cer et al. 2017) from a folder of data sets, as its authors released it.

    Raises:
        InvalidRequest: it is not there.
    """
    path = data / "glue" / "STS-B" / "sts-test-gold.tsv.xz"
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        return ScoredPairs(
            tuple(row[5] for row in rows),
            tuple(row[6] for row in rows),
            tuple(float(row[4]) for row in rows),
        )
    except (OSError, EOFError, lzma.LZMAError, IndexError, ValueError) as error:
        raise InvalidRequest(f"cannot read STS-B from {path}: {error}") from None


def spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    ranks = []
    for values in (left, right):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranks.append((last - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def random_ids(tokenizer: Tokenizer, length: int, seed: int) -> NDArray[np.int64]:
    """Ids drawn uniformly from the vocabulary, without special tokens."""
    special = {tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values()}
    plain = np.array([i for i in range(tokenizer.vocabulary_size) if i not in special], dtype=np.int64)
    return np.random.default_rng([seed, length]).choice(plain, length)


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model in a report."""

    name: str
    revision: str | None
    random_weights: bool
    layers: int
    width: int
    heads: int
    """Of the layer with the most."""
    parameter_count: int
    max_tokens: int | None
    """Maximum length, special tokens included; None without a limit."""

    @property
    def title(self) -> str:
        """For people."""
        kind = ", random weights" if self.random_weights else ""
        return f"{self.name} ({self.layers} layers, {self.parameter_count / 1e6:,.1f} M parameters{kind})"


@dataclass(frozen=True)
class BenchmarkModel:
    """A checkpoint folder to measure."""

    record: ModelInfo
    folder: Path
    head: PooledVector
    """The embedding head: the checkpoint's, or mean pooling."""


@contextmanager
def benchmark_model(
    model: str | None,
    architecture: str | None,
    *,
    layers: int | None,
    seed: int,
    revision: str | None = None,
) -> Iterator[BenchmarkModel]:
    """The model to benchmark; the folder of an ``architecture`` is removed when the block ends.

    Args:
        model: a folder, a hub id or "default".
        architecture: the last part of a published checkpoint's hub id, in any case; weights are random.
        layers: keep only the first layers of an architecture; None keeps all.
        seed: seed of the random weights.
        revision: revision on the hub, for ``model``.

    Raises:
        InvalidRequest: both or neither are named, or there is no such architecture.
        CheckpointError: the model cannot be found or read.
    """
    if (model is None) == (architecture is None):
        raise InvalidRequest(
            "name either a model (--model) or an architecture (--architecture), not both and not neither"
        )
    if architecture is None:
        if layers is not None:
            raise InvalidRequest(
                "--layers shortens an --architecture; a --model is measured with all its layers"
            )
        source = find(str(model), revision)
        yield described(source.folder, source.name, source.revision, random_weights=False)
        return
    family, published = find_architecture(architecture)
    spec = shortened(published.spec, layers)
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place) / published.name.rpartition("/")[2]
        write_random(folder, family, spec, seed)
        yield described(folder, published.name, None, random_weights=True)


@contextmanager
def causal_model(subject: BenchmarkModel, seed: int) -> Iterator[BenchmarkModel]:
    """A decoder of the subject's sizes, with random weights, in a folder that is removed when the block ends.

    Every layer is the subject's with causal attention; there is no head.

    Args:
        subject: a model that reads in both directions.
        seed: seed of the random weights.

    Raises:
        InvalidRequest: a layer has no causal form: its attention is causal already, or not over whole texts.
    """
    spec = read_checkpoint(Source(subject.folder, subject.record.name)).spec
    layers = []
    for number, layer in enumerate(spec.layers):
        mixer = layer.mixer
        if not isinstance(mixer, SoftmaxAttention) or not isinstance(mixer.pattern, FullAttention):
            what = (
                describe_pattern(mixer.pattern) if isinstance(mixer, SoftmaxAttention) else "linear attention"
            )
            raise InvalidRequest(
                f"{subject.record.name} has no causal form, because the attention of layer {number} is "
                f"not full ({what}); name a model "
                "whose layers have full attention, such as bert-base-uncased"
            )
        layers.append(replace(layer, mixer=replace(mixer, pattern=CausalAttention())))
    causal = replace(spec, layers=tuple(layers), heads=(), pooler=None)
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place) / "causal"
        write_random(folder, NATIVE, causal, seed)
        yield described(folder, f"causal form of {subject.record.name}", None, random_weights=True)


def shortened(spec: EncoderSpec, layers: int | None) -> EncoderSpec:
    """The encoder with only its first ``layers`` layers; None keeps all."""
    if layers is None:
        return spec
    if not 1 <= layers <= len(spec.layers):
        raise InvalidRequest(f"--layers is {layers}; this architecture has 1 to {len(spec.layers)}")
    sharing = None if spec.sharing is None else spec.sharing[:layers]
    return replace(spec, layers=spec.layers[:layers], sharing=sharing)


def write_random(folder: Path, family: Family, spec: EncoderSpec, seed: int) -> None:
    """Write a checkpoint folder with random weights, an invented vocabulary and mean pooling."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(spec)
    embedding = spec.embedding
    words = "\n".join(invented_words(embedding.vocabulary, embedding.padding_id or 0)) + "\n"
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    inputs = ["input_ids", *(["token_type_ids"] if embedding.segments else []), "attention_mask"]
    settings = {**roles, "model_input_names": inputs, "tokenizer_class": "PreTrainedTokenizerFast"}
    built = Tokenizer.from_files({"vocab.txt": words.encode()})
    files = {
        "config.json": to_json({**family.write(spec), "dtype": "float32"}),
        "tokenizer.json": built.files["tokenizer.json"],
        "tokenizer_config.json": to_json(settings),
        **write_head(PooledVector(), spec.width, spec.max_tokens),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    save_file(their_tensors(encoder, family), folder / WEIGHTS, metadata={"format": "pt"})


def invented_words(size: int, padding_id: int) -> list[str]:
    """A vocabulary of the given size: special tokens, [PAD] at its id, letters, and words made of
    syllables."""
    others = [piece for piece in SPECIAL if piece != "[PAD]"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = itertools.chain(
        others,
        letters,
        (f"##{letter}" for letter in letters),
        map("".join, itertools.product(SYLLABLES, repeat=2)),
        map("".join, itertools.product(SYLLABLES, repeat=3)),
    )
    pieces = list(itertools.islice(words, size - 1))
    pieces.insert(min(padding_id, len(pieces)), "[PAD]")
    return pieces


def described(folder: Path, name: str, revision: str | None, *, random_weights: bool) -> BenchmarkModel:
    """The checkpoint in a folder, to measure."""
    checkpoint = read_checkpoint(Source(folder, name, revision))
    spec = checkpoint.spec
    require_layers(spec, "a benchmark")
    record = ModelInfo(
        name=name,
        revision=revision,
        random_weights=random_weights,
        layers=len(spec.layers),
        width=spec.width,
        heads=max(layer.mixer.heads for layer in spec.layers),
        parameter_count=parameter_count(spec),
        max_tokens=checkpoint.max_tokens,
    )
    head = checkpoint.head
    # Layers after pooling have weights, which other libraries would not apply.
    pooled = PooledVector(head.pooling, head.normalize) if isinstance(head, PooledVector) else PooledVector()
    return BenchmarkModel(record, folder, pooled)
