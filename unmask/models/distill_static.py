"""Make a static model from an encoder: a vector for each token of its vocabulary, as Model2Vec stores them.

Each token is encoded by itself between the encoder's special tokens, the vectors are reduced to their
principal components, and frequent tokens get less weight (Tulkens and van Dongen 2024; the weights are those
of Arora et al. 2017). With texts, the table is then trained until the mean of a text's rows points where the
encoder's vector of the text does.

Axes: V tokens of the vocabulary; C tokens that a text can have; W numbers of the encoder's vectors;
E numbers of the table's.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import unmask
from unmask.base.arguments import check_callable, whole_number
from unmask.base.optional import require_torch
from unmask.base.progress import Progress
from unmask.errors import InvalidRequest, quoted
from unmask.families.static import STATIC, TABLE, spec
from unmask.interpret.corpus.texts import corpus_of
from unmask.models.load import Model, load
from unmask.spec import PooledVector
from unmask.spec.encoder import require_layers
from unmask.tasks.batches import TOKENS_PER_PASS, batches
from unmask.tasks.embed import embedding_head
from unmask.text import PackedBatch, Tokenizer
from unmask.weights.heads.embedding_head import write_output
from unmask.weights.write.static import static_config, write_static

Float32s = NDArray[np.float32]

UNUSED = re.compile(r"\[unused\d+\]")
"""Pieces that no text has; they do not count for principal components."""
HELD_OUT = 0.05
"""The share of texts that the table is not trained on, by which the best epoch is chosen."""
TEXTS_PER_STEP = 256
LEARNING_RATE = 0.05
"""Of Adam, as a share of the root mean square of the table's numbers."""


@dataclass(frozen=True)
class StaticDistillation:
    """What `distill_static` did."""

    folder: str
    teacher: str
    vocabulary: int
    dimensions: int
    explained: float
    """The share of the variance of the tokens' vectors that the principal components have."""
    texts: int
    """Texts that were read; 0 without training."""
    epochs: int
    """The epoch whose table was written; 0 if none was better than no training."""
    cosine_before: float | None
    """The mean cosine with the encoder's vectors of texts that are not trained on; None without texts."""
    cosine: float | None
    """The same after training."""
    seconds: Mapping[str, float]
    """Of the parts: ``vocabulary``, ``texts`` and ``training``."""


def distill_static(
    teacher: Model | str | Path,
    folder: str | Path,
    *,
    dimensions: int = 256,
    texts: str | Path | Sequence[str] | None = None,
    smoothing: float = 1e-5,
    epochs: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> StaticDistillation:
    """Make a static model from an encoder of texts, in a folder that Model2Vec also reads.

    Args:
        teacher: a loaded model that gives one vector for a text, or what `unmask.load` takes.
        folder: the folder to write, which appears complete or not at all.
        dimensions: the width of the vectors, at most that of the teacher's.
        texts: texts on whose vectors the table is trained: a ``.txt`` or ``.jsonl`` file, see
            `unmask.interpret.corpus.texts.read_corpus`, or a list. Their end is cut where the teacher reads
            no further. None trains nothing, and needs no torch.
        smoothing: a of the weights ``a / (a + p)``, where p is the share of a token among all: counted in
            ``texts``, without texts by its rank in the vocabulary, 1 / rank.
        epochs: how often the texts are read in training; the best epoch on held-out texts is written.
        seed: determines the order of the texts.
        progress: called with the numbers of texts and tokens that the teacher has encoded, and of all.

    Raises:
        InvalidRequest: the teacher gives no single vector for a text, or an argument is out of range.
        TextError: the texts cannot be read.
        MissingExtra: the table is to be trained, and torch is not installed.
        OutputError: the folder exists and is not empty, or cannot be written.
    """
    whole_number("dimensions", dimensions, 1)
    whole_number("epochs", epochs, 1)
    check_callable("progress", progress)
    if not isinstance(smoothing, float | int) or not 0 < smoothing <= 1:
        raise InvalidRequest(f"smoothing is {quoted(smoothing)}; it must be above 0 and at most 1")
    if Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise InvalidRequest(f"{folder} exists already; name a folder that does not, or an empty one")
    if texts is not None:
        require_torch("training a static model")
    corpus = [] if texts is None else [text.text for text in corpus_of(texts).texts]
    model = teacher if isinstance(teacher, Model) else load(teacher)
    require_layers(model.spec, "the teacher of a static model")
    head = embedding_head(model.checkpoint.head)
    width = head.width(model.spec)
    if dimensions > width:
        raise InvalidRequest(
            f"dimensions is {dimensions} and the vectors of {model.name} have {width}; give at most {width}"
        )
    clock = _Clock()
    rows_VW, counted_V = _token_vectors(model, head, progress)
    clock.stop("vocabulary")
    table_VE, axes_WE, explained = _principal(rows_VW, counted_V, dimensions)
    ids = _ids(model.tokenizer, corpus)
    table_VE *= _weights(counted_V, ids, smoothing)[:, None]
    training = _Training(table_VE)
    if corpus:
        targets_SW = model.embed(corpus, truncation="end", progress=progress)
        clock.stop("texts")
        training = _trained(table_VE, ids, targets_SW @ axes_WE, epochs, seed)
        clock.stop("training")
    result = StaticDistillation(
        folder=str(folder),
        teacher=model.name,
        vocabulary=len(rows_VW),
        dimensions=dimensions,
        explained=explained,
        texts=len(corpus),
        epochs=training.epoch,
        cosine_before=training.cosine_before,
        cosine=training.cosine,
        seconds=clock.seconds,
    )
    _write(Path(folder), model, training.table_VE, result)
    return result


class _Clock:
    """Seconds of parts, one after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def stop(self, part: str) -> None:
        """The part ends, and the next begins."""
        now = time.perf_counter()
        self.seconds[part], self._since = round(now - self._since, 2), now


def _token_vectors(
    model: Model, head: PooledVector, progress: Progress | None
) -> tuple[Float32s, NDArray[np.bool_]]:
    """The vector of each token between special tokens, and which tokens a text can have.

    Special tokens have zeros, so that they change no direction of a mean.
    """
    tokenizer = model.tokenizer
    engine = tokenizer.engine
    added = {id_ for id_, token in engine.get_added_tokens_decoder().items() if token.special}
    named = (tokenizer.token_to_id(token) for token in tokenizer.special_tokens.values())
    added |= {id_ for id_ in named if id_ is not None}
    probe = tokenizer.encode("a")
    inside = np.flatnonzero(~probe.special)
    before, after = probe.ids[: inside[0]].tolist(), probe.ids[inside[-1] + 1 :].tolist()
    count = max(engine.get_vocab().values()) + 1
    known = min(count, model.spec.embedding.vocabulary)
    chosen = np.array([id_ for id_ in range(known) if id_ not in added], np.int64)
    rows_VW = np.zeros((count, head.width(model.spec)), np.float32)
    # Lengths of vectors tell common tokens from rare ones, and would be lost.
    raw = replace(head, normalize=False)
    lengths = [len(before) + 1 + len(after)] * len(chosen)

    def packed(tokens: NDArray[np.int64]) -> PackedBatch:
        return PackedBatch.of_ids([[*before, id_, *after] for id_ in chosen[tokens].tolist()])

    for tokens, batch in batches(lengths, packed, TOKENS_PER_PASS, progress):
        rows_VW[chosen[tokens]] = model.engine.embed(batch, raw)
    if not np.isfinite(rows_VW).all():
        raise InvalidRequest(f"{model.name} gives vectors that are not finite; load it in float32")
    counted_V = np.zeros(count, np.bool_)
    counted_V[chosen] = [not UNUSED.fullmatch(str(engine.id_to_token(id_))) for id_ in chosen.tolist()]
    return rows_VW, counted_V


def _principal(
    rows_VW: Float32s, counted_V: NDArray[np.bool_], dimensions: int
) -> tuple[Float32s, Float32s, float]:
    """The tokens' vectors on their first principal components, (V, E), the components, (W, E), and the share
    of the variance that these have. The largest number of each component is positive.
    """
    chosen_CW = rows_VW[counted_V].astype(np.float64)
    mean_W = chosen_CW.mean(0)
    centered_CW = chosen_CW - mean_W
    variances_W, axes_WW = np.linalg.eigh(centered_CW.T @ centered_CW / max(len(chosen_CW) - 1, 1))
    axes_WE = axes_WW[:, ::-1][:, :dimensions]
    axes_WE = axes_WE * np.sign(axes_WE[np.abs(axes_WE).argmax(0), np.arange(dimensions)])
    table_VE = np.zeros((len(rows_VW), dimensions), np.float32)
    table_VE[counted_V] = centered_CW @ axes_WE
    explained = variances_W[::-1][:dimensions].sum() / max(variances_W.sum(), np.finfo(float).tiny)
    return table_VE, axes_WE.astype(np.float32), float(explained)


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """The ids of each text without special tokens and unknown ones."""
    engine, unknown = tokenizer.without_special_tokens().engine, tokenizer.unknown_id
    encodings = engine.encode_batch_fast(list(texts))
    return [np.array([id_ for id_ in encoding.ids if id_ != unknown], np.int64) for encoding in encodings]


def _weights(counted_V: NDArray[np.bool_], ids: Sequence[NDArray[np.int64]], smoothing: float) -> Float32s:
    """The weight of each token, (V,)."""
    if ids:
        counts_V = 1.0 + np.bincount(np.concatenate(ids), minlength=len(counted_V))
    else:
        counts_V = 1.0 / np.maximum(np.cumsum(counted_V), 1)
    shares_V = counts_V * counted_V / (counts_V * counted_V).sum()
    return np.asarray(smoothing / (smoothing + shares_V), np.float32)


@dataclass(frozen=True, eq=False)
class _Training:
    table_VE: Float32s
    epoch: int = 0
    cosine_before: float | None = None
    cosine: float | None = None


def _trained(
    table_VE: Float32s, ids: Sequence[NDArray[np.int64]], targets_SE: Float32s, epochs: int, seed: int
) -> _Training:
    """The table after the best epoch; its loss is 1 minus the cosine of a text's mean and its target."""
    import torch
    from torch.nn import functional

    generator = np.random.default_rng(seed)
    order = generator.permutation([text for text, of_text in enumerate(ids) if len(of_text)])
    held = order[: max(1, round(HELD_OUT * len(order)))]
    order = order[len(held) :]
    if not len(order):
        raise InvalidRequest("texts has a single text with known tokens; give more to train on")
    weight = torch.from_numpy(table_VE.copy()).requires_grad_()
    targets = torch.from_numpy(np.ascontiguousarray(targets_SE))
    rate = LEARNING_RATE * float(weight.detach().square().mean().sqrt())
    optimizer = torch.optim.SparseAdam([weight], lr=rate)  # a step changes the rows of its texts alone
    steps, step = epochs * -(-len(order) // TEXTS_PER_STEP), 0

    def cosines(texts: NDArray[np.int64]) -> torch.Tensor:
        flat = torch.from_numpy(np.concatenate([ids[text] for text in texts]))
        starts = torch.from_numpy(np.cumsum([0, *(len(ids[text]) for text in texts[:-1])]))
        means = functional.embedding_bag(flat, weight, starts, mode="mean", sparse=True)
        return functional.cosine_similarity(means, targets[torch.from_numpy(texts)])

    def on_held() -> float:
        with torch.no_grad():
            return float(cosines(held).mean())

    before = best = on_held()
    table, chosen = table_VE, 0
    for epoch in range(1, epochs + 1):
        shuffled = generator.permutation(order)
        for start in range(0, len(shuffled), TEXTS_PER_STEP):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / steps)
            optimizer.zero_grad()
            loss = 1 - cosines(shuffled[start : start + TEXTS_PER_STEP]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()  # type: ignore[no-untyped-call]
            step += 1
        cosine = on_held()
        if cosine > best:
            best, table, chosen = cosine, weight.detach().numpy().copy(), epoch
    return _Training(table, chosen, before, best)


def _write(folder: Path, model: Model, table_VE: Float32s, result: StaticDistillation) -> None:
    encoder = spec(vocabulary=table_VE.shape[0], width=table_VE.shape[1])
    config = {"max_length": None, "normalize": True, "tokenizer_name": model.name}
    files = {
        "README.md": _card(folder.name, result).encode(),
        "config.json": static_config(config, STATIC.write(encoder), "float32"),
        # As it reads here: it truncates and pads nothing.
        "tokenizer.json": model.tokenizer.engine.to_str().encode(),
        **write_output(PooledVector(("mean",), normalize=True), encoder, None, {}),
    }
    write_static(folder, files, {"": {TABLE: table_VE}})


def _card(name: str, result: StaticDistillation) -> str:
    """The text of README.md."""
    trained = "It was not trained on texts."
    if result.texts:
        trained = (
            f"It was trained on the vectors of {result.texts:,} texts; on held-out texts the mean cosine "
            f"with the teacher's vectors rose from {result.cosine_before:.3f} to {result.cosine:.3f}."
        )
    lines = [
        *("---", f"base_model: {result.teacher}", "tags:", "- static-embeddings", "- model2vec"),
        *("- sentence-transformers", "---", "", f"# {name}", ""),
        f"A static model of {result.vocabulary:,} tokens in {result.dimensions} dimensions, made from "
        f"{result.teacher} with unmask {unmask.__version__}: the vector of a text is the mean of its tokens' "
        "vectors, whatever their order.",
        *("", trained, "", "## Use", "", "```python", "import unmask", ""),
        'model = unmask.load("path/to/this/folder")',
        *('vectors = model.embed(["A text.", "Another text."])', "```", ""),
        "`model2vec` and `sentence-transformers` read the folder, too.",
        "",
    ]
    return "\n".join(lines)
