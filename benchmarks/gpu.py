"""Checks and measures everything on one GPU in under ten minutes; one script, one folder of results.

    PYTHONPATH=. python benchmarks/gpu.py --out results

Every kernel that runs on the device is first compared with float64 on newly drawn layouts; then attention
alone, disentangled attention, whole models and a training step are timed, each against what else is there.
Sections stand in the order of their importance and have a budget each; what fails is written down and the
rest goes on. ``--device cpu --tiny`` runs the same in seconds on any machine, at sizes that mean nothing.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.encoder.encoder import Encoder, compile_blocks
from unmask.families import FAMILIES
from unmask.kernels import KERNELS, AttentionBias, DistanceBias, Kernel
from unmask.spec import (
    Alibi,
    BlockSparse,
    CausalAttention,
    Disentangled,
    FullAttention,
    LayerNorm,
    NoPosition,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
)
from unmask.spec.heads import MaskedLM, Transform
from unmask.text import SequenceLayout

HEADS, HEAD_WIDTH = 12, 64
WORDS = 1000
"""Ids are drawn from the first of a vocabulary."""
KERNEL = {kernel.capability.name: kernel for kernel in KERNELS}
REACHES = (
    FullAttention(),
    CausalAttention(),
    SlidingWindow(5),
    SlidingWindow(64),
    SlidingWindow(3, dilation=2),
    SlidingWindowGlobal(SlidingWindow(4), own_projections=False),
    BlockSparse(8, 2, seed=1),
)
POSITIONS = (NoPosition(), Alibi(), Disentangled(64, buckets=32, clamped=True))
BACKWARD_PER_FORWARD = 2.5
"""Multiplications of attention's backward to those of its forward, by the usual count."""


@dataclass
class Run:
    """Where and how large; and what one section finds for the next."""

    device: torch.device
    tiny: bool
    random: np.random.Generator
    peak_tflops: float = float("nan")
    """Best measured product in the working dtype."""
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        """What is timed."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def size(self, full: int, tiny: int) -> int:
        """A size of a measurement."""
        return tiny if self.tiny else full

    def kernels(self) -> list[Kernel]:
        """Those that run here."""
        return [
            kernel
            for kernel in KERNELS
            if self.device.type in kernel.capability.devices and not kernel.capability.unavailable()
        ]

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers on the device."""
        return torch.randn(shape, device=self.device, dtype=dtype or self.dtype)

    def median_ms(self, work: Callable[[], object]) -> float:
        """Median milliseconds of one call, after warm-up."""
        for _ in range(self.size(3, 1)):
            work()
        once = self._ms(work)
        calls = int(np.clip(300 / max(once, 1e-3), 5, 50)) if not self.tiny else 2
        return statistics.median(self._ms(work) for _ in range(calls))

    def _ms(self, work: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


@dataclass(frozen=True)
class Case:
    """One row of a table: what it is, and how it is measured."""

    labels: dict[str, Any]
    measure: Callable[[], dict[str, Any]]


# --- machine -------------------------------------------------------------------------------------------


def machine(run: Run) -> Iterator[Case]:
    """Ceilings: products of the shapes that encoders have, and copying."""
    tokens = run.size(65_536, 64)
    for inner, columns in ((768, 2304), (768, 768), (1152, 768), (768, 3072), (4096, 4096), (8192, 8192)):
        shape = (min(tokens, 8192), inner, columns) if inner > 4000 else (tokens, inner, columns)
        if run.tiny:
            shape = (tokens, inner // 16, columns // 16)
        yield Case(
            {"what": "product", "shape": "x".join(map(str, shape))}, lambda shape=shape: product(run, *shape)
        )
    yield Case({"what": "copy"}, lambda: copying(run))


def product(run: Run, rows: int, inner: int, columns: int) -> dict[str, Any]:
    """One matrix product by the weights of a linear layer."""
    x, w = run.randn(rows, inner), run.randn(columns, inner)
    ms = run.median_ms(lambda: torch.nn.functional.linear(x, w))
    tflops = 2 * rows * inner * columns / ms / 1e9
    run.peak_tflops = float(np.nanmax((run.peak_tflops, tflops)))
    return {"ms": ms, "tflops": tflops}


def copying(run: Run) -> dict[str, Any]:
    """Bytes read and written a second."""
    source = run.randn(run.size(1 << 29, 1 << 16))
    target = torch.empty_like(source)
    ms = run.median_ms(lambda: target.copy_(source))
    return {"ms": ms, "gb_per_s": 2 * source.numel() * source.element_size() / ms / 1e6}


# --- errors --------------------------------------------------------------------------------------------


def errors(run: Run) -> Iterator[Case]:
    """Every kernel against the definition in float64, forward and backward, on newly drawn layouts."""
    for kernel in sorted(run.kernels(), key=lambda kernel: kernel.capability.name == "flex"):
        record = kernel.capability
        dtypes = {"float32", "bfloat16", "float16"} if run.device.type == "cuda" else {"float32"}
        if record.name == "flex":  # every form of it takes many seconds to compile
            dtypes = {"bfloat16"}
        if record.name == "reference":
            continue
        for pattern in REACHES:
            gaps = isinstance(pattern, SlidingWindow) and pattern.dilation > 1
            if type(pattern) not in record.patterns or (gaps and not record.dilation):
                continue
            for position in POSITIONS:
                for dtype in sorted(record.dtypes.intersection(dtypes)):
                    if type(position) in record.positions:
                        labels = {"kernel": record.name, "reach": str(pattern), "position": str(position)}
                        yield Case(
                            labels | {"dtype": dtype},
                            lambda k=kernel, r=pattern, p=position, d=dtype: error(run, k, r, p, d),
                        )


def ragged(run: Run) -> SequenceLayout:
    """Lengths around the edges of tiles and some between, with a few global tokens."""
    edges = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 300, 700)
    lengths = run.random.choice(edges[: run.size(len(edges), 9)], size=run.size(9, 4))
    return SequenceLayout.of_lengths(lengths, run.random.random(lengths.sum()) < 0.02)


def terms_of(run: Run, position: Any, heads: int, width: int, dtype: torch.dtype) -> AttentionBias:
    """The terms of a layer, tables of distances random."""
    if not isinstance(position, Disentangled):
        return AttentionBias.of(position, heads)
    tables = [run.randn(2 * position.span, heads, width, dtype=dtype).requires_grad_() for _ in range(2)]
    return AttentionBias(distances=DistanceBias(position, *tables))


def error(run: Run, kernel: Kernel, pattern: Any, position: Any, dtype: str) -> dict[str, Any]:
    """Largest differences of outputs, log-sum-exp and gradients, each to the largest true value."""
    if kernel.capability.name == "flex":  # more forms than torch compiles of one function
        torch._dynamo.reset()
    layout, kind = ragged(run), getattr(torch, dtype)
    width = run.size(HEAD_WIDTH, 16)
    inputs = [run.randn(layout.token_count, 2, width, dtype=kind).requires_grad_() for _ in range(3)]
    bias = terms_of(run, position, 2, width, kind)
    if bias.distances is not None:
        inputs += [
            table for table in (bias.distances.keys_PHK, bias.distances.queries_PHK) if table is not None
        ]
    wants_sums = kernel.capability.log_sum_exp
    weights = [run.randn(*inputs[0].shape, dtype=kind), run.randn(*inputs[0].shape[:2], dtype=kind)]
    results = []
    for one in (KERNEL["reference"], kernel):
        spoil(inputs[0])
        plan = one.plan(layout, pattern, run.device)
        o, lse = one.attend(*inputs[:3], plan, pattern=pattern, bias=bias, log_sum_exp=wants_sums)
        loss = (o * weights[0]).sum() if lse is None else (o * weights[0]).sum() + (lse * weights[1]).sum()
        spoil(inputs[0])
        found = [o, *torch.autograd.grad(loss, inputs)]
        results.append([x.detach().double() for x in (found if lse is None else [*found, lse])])
    names = (
        "o",
        "q",
        "k",
        "v",
        *(("keys", "queries") if len(inputs) > 3 else ()),
        *(("lse",) if wants_sums else ()),
    )
    return {
        f"error_{name}": float((found - true).abs().max() / true.abs().max().clamp(min=1.0))
        for name, true, found in zip(names, *results, strict=True)
    }


def spoil(like: torch.Tensor) -> None:
    """Leave numbers that are none where the next tensors of this size will be made."""
    held = [torch.full_like(like, float("nan"), requires_grad=False) for _ in range(8)]
    del held


# --- attention -----------------------------------------------------------------------------------------


def attention(run: Run) -> Iterator[Case]:
    """Whole attention of texts of one length and of many."""
    for length in (64, 128, 512, 2048, 8192) if not run.tiny else (16, 32):
        for ragged_lengths in (False, True):
            yield from kernels_on(run, FullAttention(), length, ragged_lengths)


def windows(run: Run) -> Iterator[Case]:
    """Windows of 64 tokens each side."""
    for length in (512, 8192) if not run.tiny else (32,):
        yield from kernels_on(run, SlidingWindow(run.size(64, 4)), length, False)


def kernels_on(run: Run, pattern: Any, length: int, ragged_lengths: bool) -> Iterator[Case]:
    """Each kernel that was made for this on one layout, forward and backward."""
    layout = drawn(run, length, run.size(32_768, 128), ragged_lengths)
    for kernel in run.kernels():
        record = kernel.capability
        fits = type(pattern) in record.patterns and NoPosition in record.positions
        if fits and record.name not in ("rows", "reference"):
            labels = {
                "kernel": record.name,
                "longest": length,
                "lengths": "varied" if ragged_lengths else "equal",
            }
            yield Case(labels, lambda k=kernel: timed_kernel(run, k, pattern, NoPosition(), layout))


def drawn(run: Run, longest: int, tokens: int, varied: bool) -> SequenceLayout:
    """About so many tokens in texts of one length, or of normal lengths around half of it."""
    if not varied:
        return SequenceLayout.of_lengths([longest] * max(1, tokens // longest))
    around = run.random.normal(longest / 2, longest / 8, size=max(1, 2 * tokens // longest))
    return SequenceLayout.of_lengths(np.clip(around, 1, longest).astype(np.int64))


def timed_kernel(
    run: Run, kernel: Kernel, pattern: Any, position: Any, layout: SequenceLayout
) -> dict[str, Any]:
    """Milliseconds and rates of forward and backward of one layer's attention."""
    heads, width = run.size(HEADS, 2), run.size(HEAD_WIDTH, 16)
    inputs = [run.randn(layout.token_count, heads, width).requires_grad_() for _ in range(3)]
    bias = terms_of(run, position, heads, width, run.dtype)
    plan = kernel.plan(layout, pattern, run.device)

    def forward() -> torch.Tensor:
        return kernel.attend(*inputs, plan, pattern=pattern, bias=bias).o_THK

    o = forward()
    g = torch.randn_like(o)
    wanted = [*inputs]
    if bias.distances is not None:
        wanted += [
            table for table in (bias.distances.keys_PHK, bias.distances.queries_PHK) if table is not None
        ]
    back_ms = run.median_ms(lambda: torch.autograd.grad(o, wanted, g, retain_graph=True))
    with torch.no_grad():
        ms = run.median_ms(forward)
    operations = 4 * attended_pairs(layout, pattern) * heads * width
    rates = operations / ms / 1e9, operations * BACKWARD_PER_FORWARD / back_ms / 1e9
    return {
        "forward_ms": ms,
        "forward_tflops": rates[0],
        "forward_share_of_peak": rates[0] / run.peak_tflops,
        "backward_ms": back_ms,
        "backward_tflops": rates[1],
        "backward_share_of_peak": rates[1] / run.peak_tflops,
    }


def attended_pairs(layout: SequenceLayout, pattern: Any) -> int:
    """Queries times the keys that each sees, over the batch; whole attention or a window."""
    lengths, positions = layout.lengths, layout.positions_T
    if isinstance(pattern, FullAttention):
        return int((lengths**2).sum())
    after = np.repeat(lengths, lengths) - 1 - positions
    steps = [np.minimum(side // pattern.dilation, pattern.radius) for side in (positions, after)]
    return int((1 + steps[0] + steps[1]).sum())


# --- disentangled --------------------------------------------------------------------------------------


def disentangled(run: Run) -> Iterator[Case]:
    """DeBERTa-v3's attention on 16,384 tokens, and others' where they are installed."""
    position = Disentangled(512, buckets=256, clamped=True) if not run.tiny else Disentangled(16, buckets=8)
    for length in (8192, 512) if not run.tiny else (48,):
        layout = drawn(run, length, run.size(16_384, 96), False)
        for kernel in run.kernels():
            name = kernel.capability.name
            if Disentangled in kernel.capability.positions and name not in ("rows", "reference"):
                measure = lambda k=kernel, at=layout: timed_kernel(run, k, FullAttention(), position, at)  # noqa: E731
                yield Case({"kernel": name, "length": length}, measure)
        for name, peer in (
            ("flashdeberta", flashdeberta),
            ("disentangled-flash (layer)", disentangled_flash),
        ):
            if installed(name.split()[0]):
                yield Case({"kernel": name, "length": length}, lambda p=peer, at=layout: p(run, at))


def flashdeberta(run: Run, layout: SequenceLayout) -> dict[str, Any]:
    """Its attention function on the same tensors, batched."""
    from flashdeberta.ops.flash_attention import flash_attention_with_disentangled

    batch, length = layout.sequence_count, int(layout.lengths[0])
    parts = [run.randn(batch, HEADS, length, HEAD_WIDTH).requires_grad_() for _ in range(3)]
    tables = [run.randn(1, HEADS, 512, HEAD_WIDTH).requires_grad_() for _ in range(2)]
    scale = 1 / (3 * HEAD_WIDTH) ** 0.5

    def forward() -> torch.Tensor:
        return flash_attention_with_disentangled(*parts, None, *tables, False, scale, 256, 512)

    return timed_peer(run, forward, [*parts, *tables])


def disentangled_flash(run: Run, layout: SequenceLayout) -> dict[str, Any]:
    """Its attention layer: with the projections, which the kernels here are timed without."""
    from disentangled_flash import TritonTrainingDisentangledSelfAttention
    from disentangled_flash._reference import DebertaAttentionConfig

    config = DebertaAttentionConfig(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    layer = TritonTrainingDisentangledSelfAttention(config).to(run.device, run.dtype)
    x = run.randn(layout.sequence_count, int(layout.lengths[0]), config.hidden_size).requires_grad_()
    table = run.randn(512, config.hidden_size).requires_grad_()

    def forward() -> torch.Tensor:
        made = layer(x, None, rel_embeddings=table)
        return made[0] if isinstance(made, tuple) else made

    return timed_peer(run, forward, [x, table, *layer.parameters()])


def timed_peer(run: Run, forward: Callable[[], torch.Tensor], wanted: list[torch.Tensor]) -> dict[str, Any]:
    """Milliseconds of another's forward and backward."""
    o = forward()
    g = torch.randn_like(o)
    back = lambda: torch.autograd.grad(o, wanted, g, retain_graph=True, allow_unused=True)  # noqa: E731
    times = {"backward_ms": run.median_ms(back)}
    with torch.no_grad():
        return {"forward_ms": run.median_ms(forward)} | times


# --- models --------------------------------------------------------------------------------------------


def spec_of(run: Run, name: str) -> Any:
    """A published shape without dropout; two layers of it where tiny."""
    (spec,) = [one.spec for family in FAMILIES for one in family.published if one.name.endswith(f"/{name}")]
    layers = [replace(layer, dropout=0.0, mixer=replace(layer.mixer, dropout=0.0)) for layer in spec.layers]
    layers = layers[: run.size(len(layers), 2)]
    words = run.size(spec.embedding.vocabulary, WORDS)
    embedding = replace(spec.embedding, vocabulary=words)
    return replace(spec, layers=tuple(layers), embedding=embedding, sharing=None)


SHAPES = (
    ("ModernBERT-base", 512),
    ("ModernBERT-base", 8192),
    ("bert-base-uncased", 512),
    ("deberta-v3-base", 512),
)
"""Which encoders, and their longest texts."""


def models(run: Run) -> Iterator[Case]:
    """Whole encoders forward, packed: plain, compiled, and those of transformers padded."""
    for name, length in SHAPES[: run.size(len(SHAPES), 1)]:
        for varied in (False, True):
            layout = drawn(run, min(length, run.size(8192, 24)), run.size(65_536, 48), varied)
            labels = {"model": name, "longest": length, "lengths": "varied" if varied else "equal"}
            for form in ("plain", "compiled") if compiles(run, name) else ("plain",):
                yield Case(labels | {"runs": form}, lambda n=name, at=layout, f=form: ours(run, n, at, f))
            if installed("transformers"):
                yield Case(labels | {"runs": "transformers"}, lambda n=name, at=layout: theirs(run, n, at))


def compiles(run: Run, name: str) -> bool:
    """Whether this one is measured compiled too, which takes its time."""
    return run.device.type == "cuda" and name == "ModernBERT-base"


def encoder_of(run: Run, spec: Any, form: str) -> Encoder:
    """Fresh weights in the working dtype."""
    if form == "compiled":
        torch._dynamo.reset()
    encoder = Encoder(spec).to(run.device, run.dtype)
    return compile_blocks(encoder) if form == "compiled" else encoder


def ours(run: Run, name: str, layout: SequenceLayout, form: str) -> dict[str, Any]:
    """Tokens a second of one packed batch, plans included."""
    spec = spec_of(run, name)
    encoder = encoder_of(run, spec, form).eval()
    ids = torch.randint(5, WORDS, (layout.token_count,), device=run.device)
    with torch.inference_mode():
        ms = run.median_ms(lambda: encoder(ids, layout))
    return rate(run, encoder, layout, ms, 1)


def theirs(run: Run, name: str, layout: SequenceLayout) -> dict[str, Any]:
    """Tokens a second of transformers' model of this shape; padding is not counted as tokens."""
    import transformers

    kinds = {
        "ModernBERT-base": (transformers.ModernBertModel, transformers.ModernBertConfig),
        "bert-base-uncased": (transformers.BertModel, transformers.BertConfig),
        "deberta-v3-base": (transformers.DebertaV2Model, transformers.DebertaV2Config),
    }
    kind, make = kinds[name]
    small = {"num_hidden_layers": 2, "vocab_size": WORDS, "pad_token_id": 0}
    sizes: dict[str, Any] = small if run.tiny else {}
    if name == "deberta-v3-base":
        sizes |= {
            "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
            "vocab_size": run.size(128_100, WORDS), "num_hidden_layers": run.size(12, 2),
            "relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True, "norm_rel_ebd": "layer_norm",
        }  # fmt: skip
        model = kind(make(**sizes))
    else:
        model = kind._from_config(make(**sizes), attn_implementation="sdpa")
    model = model.to(run.device, run.dtype).eval()
    longest = int(layout.lengths.max())
    mask = torch.arange(longest)[None] < torch.from_numpy(layout.lengths)[:, None]
    mask = mask.long().to(run.device)
    ids = torch.randint(5, WORDS, mask.shape, device=run.device)
    with torch.inference_mode():
        ms = run.median_ms(lambda: model(input_ids=ids, attention_mask=mask))
    return {"ms": ms, "mtokens_per_s": layout.token_count / ms / 1e3}


def rate(run: Run, encoder: Encoder, layout: SequenceLayout, ms: float, passes: int) -> dict[str, Any]:
    """Tokens a second and the share of the measured peak; ``passes`` is 3 with the backward pass."""
    weights = sum(p.numel() for name, p in encoder.layers.named_parameters() if p.ndim == 2)
    operations = 2 * weights * layout.token_count
    for layer in encoder.spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, SoftmaxAttention) and isinstance(
            mixer.position, NoPosition | Rotary | Disentangled
        ):
            operations += 4 * attended_pairs(layout, mixer.pattern) * mixer.heads * mixer.head_width
    tflops = passes * operations / ms / 1e9
    return {
        "ms": ms,
        "mtokens_per_s": layout.token_count / ms / 1e3,
        "tflops": tflops,
        "share_of_peak": tflops / run.peak_tflops,
    }


# --- training ------------------------------------------------------------------------------------------


def training(run: Run) -> Iterator[Case]:
    """One step of ModernBERT-base on masked words: forward, backward, AdamW on float32 masters."""
    for tokens in (65_536, 131_072) if not run.tiny else (64,):
        for form in ("compiled", "plain") if run.device.type == "cuda" else ("plain",):
            yield Case({"runs": form, "tokens": tokens}, lambda t=tokens, f=form: train(run, t, f))


def train(run: Run, tokens: int, form: str) -> dict[str, Any]:
    """Tokens a second of a step at texts of up to 1,024 tokens, 30 % of them predicted."""
    spec = spec_of(run, "ModernBERT-base")
    head = MaskedLM(Transform(spec.width, "gelu", LayerNorm(1e-5, bias=False), bias=False))
    encoder = encoder_of(run, replace(spec, heads=(head,)), form).train()
    lengths = np.append(run.random.integers(64, 1024, size=tokens // 1024) if not run.tiny else [9, 30], 0)
    lengths[-1] = tokens - lengths.sum()
    lengths = np.concatenate([lengths[:-1], np.diff(np.append(np.arange(0, lengths[-1], 1024), lengths[-1]))])
    layout = SequenceLayout.of_lengths(lengths.astype(np.int64))
    ids = torch.randint(5, WORDS, (tokens,), device=run.device)
    chosen = torch.from_numpy(np.sort(run.random.permutation(tokens)[: round(0.3 * tokens)])).to(run.device)
    weights = list(encoder.parameters())
    masters = [p.detach().float().requires_grad_() for p in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=run.device.type == "cuda")

    def step() -> None:
        hidden = encoder(ids, layout)
        logits = encoder.logits("masked", hidden[chosen], layout)
        torch.nn.functional.cross_entropy(logits.float(), ids[chosen]).backward()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                master.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
            optimizer.step()
            torch._foreach_copy_(weights, masters)

    ms = run.median_ms(step)
    found = rate(run, encoder, layout, ms, 3)
    if run.device.type == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["launches"] = launches(step)
    return found


def launches(step: Callable[[], None]) -> int:
    """Kernels that one step starts on the device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in profiled.key_averages() if "memcpy" not in event.key.lower())


# --- the run -------------------------------------------------------------------------------------------

SECTIONS: tuple[tuple[str, int, Callable[[Run], Iterator[Case]]], ...] = (
    ("machine", 20, machine),
    ("errors", 150, errors),
    ("attention", 90, attention),
    ("windows", 30, windows),
    ("disentangled", 70, disentangled),
    ("models", 130, models),
    ("training", 90, training),
)
"""Name, seconds and cases of each, the most important first."""

TOTAL_SECONDS = 570
"""No case starts later."""


def installed(package: str) -> bool:
    """Whether a peer is here."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def run_section(run: Run, name: str, budget_seconds: float, cases: Iterator[Case]) -> None:
    """Every case within the budget; a case that fails leaves its error and the next one runs."""
    start = time.monotonic()
    for case in cases:
        if time.monotonic() - start > budget_seconds:
            run.rows.append({"section": name, **case.labels, "error": "not run: the section's time was up"})
            continue
        try:
            found = case.measure()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        run.rows.append({"section": name, **case.labels, **found})
        print(json.dumps(run.rows[-1]), flush=True)
        if run.device.type == "cuda":
            torch.cuda.empty_cache()


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table for each section, its columns in order of appearance."""
    text = []
    for section in dict.fromkeys(row["section"] for row in rows):
        own = [row for row in rows if row["section"] == section]
        columns = list(dict.fromkeys(key for row in own for key in row if key != "section"))
        text += [f"## {section}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in own:
            cells = [row.get(column, "") for column in columns]
            shown = [
                f"{cell:.3g}" if isinstance(cell, float) else str(cell).replace("|", "/") for cell in cells
            ]
            text.append(f"| {' | '.join(shown)} |")
        text.append("")
    return "\n".join(text)


def record(run: Run) -> dict[str, Any]:
    """What this ran on."""
    packages = ("torch", "triton", "transformers", "flashdeberta", "disentangled-flash")
    return {
        "device": torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else "cpu",
        "versions": {name: version(name) if installed(name) else None for name in packages},
        "tiny": run.tiny,
        "peak_tflops": run.peak_tflops,
    }


def main(arguments: list[str] | None = None) -> None:
    """All sections, or those named; results are written after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json and gpu.md")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a test of this script")
    parser.add_argument("--sections", nargs="*", default=[name for name, _, _ in SECTIONS])
    parser.add_argument("--seed", type=int, default=None, help="random if not given")
    chosen = parser.parse_args(arguments)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if chosen.seed is None else chosen.seed
    torch.manual_seed(seed)
    run = Run(torch.device(chosen.device), chosen.tiny, np.random.default_rng(seed))
    chosen.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for name, budget, cases in SECTIONS:
        if name not in chosen.sections:
            continue
        left = TOTAL_SECONDS - (time.monotonic() - start)
        run_section(run, name, min(budget, left), cases(run))
        seconds = round(time.monotonic() - start, 1)
        result = {**record(run), "seed": seed, "seconds": seconds, "rows": run.rows}
        (chosen.out / "gpu.json").write_text(json.dumps(result, indent=1))
        (chosen.out / "gpu.md").write_text(markdown(run.rows))


if __name__ == "__main__":
    main()
