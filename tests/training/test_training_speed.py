"""What training on a CPU runs through (oneDNN, texts in bins, the native library), and its benchmark."""

import copy
import json
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks.peers.__main__ import app
from tests.support.command import assert_one_sentence, run_here
from tests.support.specs import SPECS, VOCABULARY, random_encoder
from tests.support.tiny import VOCABULARY as WORDS
from tests.training.runs import write_run, write_texts
from unmask.encoder.encoder import compile_blocks
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.trained_linear import TrainedEmbedding, TrainedLinear, train_with_onednn
from unmask.engines.native import library
from unmask.engines.native.threads import set_thread_count, thread_count
from unmask.engines.native.training import NativeTrainingKernel, train_natively
from unmask.errors import KernelError
from unmask.kernels import (
    KERNELS,
    AttentionBias,
    AttentionRequest,
    choose,
    products,
)
from unmask.kernels.binned import BinnedKernel, Bins, fill
from unmask.kernels.products import linear, outer
from unmask.kernels.sdpa import MaskedSdpaKernel
from unmask.spec import (
    Alibi,
    CausalAttention,
    Disentangled,
    FullAttention,
    Layer,
    LayerNorm,
    NoPosition,
    PlainFeedForward,
    SlidingWindow,
    SoftmaxAttention,
)
from unmask.text import PackedBatch, SequenceLayout
from unmask.training.pretrain import pretrain
from unmask.training.run.callbacks import Callback

CPU = torch.device("cpu")


def need(**changes):
    fields = {
        "device": "cpu",
        "dtype": "bfloat16",
        "pattern": FullAttention(),
        "position": NoPosition(),
        "head_width": 64,
    }
    return AttentionRequest(**(fields | {"longest": 100, "gradients": True} | changes))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "binned"),
        ({"longest": 256, "pattern": SlidingWindow(64), "position": Alibi()}, "binned"),
        ({"longest": 257}, "sdpa-masked"),
        ({"longest": 513}, "sdpa"),
        ({"longest": 513, "pattern": SlidingWindow(64)}, "tiled"),
        ({"dtype": "float32"}, "sdpa"),
        ({"dtype": "float32", "pattern": SlidingWindow(64)}, "sdpa-masked"),
        ({"dtype": "float32", "longest": 512, "position": Alibi()}, "sdpa-masked"),
        ({"dtype": "float32", "longest": 513, "position": Alibi()}, "tiled"),
        ({"gradients": False}, "tiled"),
        ({"gradients": False, "dtype": "float32", "longest": 20}, "sdpa"),
        ({"gradients": False, "pattern": SlidingWindow(64)}, "tiled"),
    ],
)
def test_training_chooses_by_dtype_and_length(changes, name):
    assert choose(need(**changes)).capability.name == name


@pytest.mark.parametrize("kernel", [BinnedKernel(), MaskedSdpaKernel()], ids=lambda k: k.capability.name)
@pytest.mark.parametrize("position", [NoPosition(), Alibi()])
@pytest.mark.parametrize("pattern", [FullAttention(), SlidingWindow(9)])
def test_bfloat16_gradients_are_as_near_as_those_of_sdpa(kernel, pattern, position):
    """Against float64 on the same rounded inputs, no farther than twice what torch's bfloat16 SDPA is."""
    generator = torch.Generator().manual_seed(0)
    layout = SequenceLayout.of_lengths([40, 7, 64, 33, 1, 90])
    q, k, v, do = torch.randn(4, layout.token_count, 4, 64, generator=generator).bfloat16()

    def run(one, dtype, pattern, position):
        tensors = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        plan = one.plan(layout, pattern, CPU)
        o_THK, _ = one.attend(*tensors, plan, pattern=pattern, bias=AttentionBias.of(position, 4))
        assert o_THK.dtype == dtype
        return [o_THK.detach(), *torch.autograd.grad(o_THK, tensors, do.to(dtype))]

    def errors(one, pattern, position):
        exact = run(choose(need(), "reference"), torch.float64, pattern, position)
        found = run(one, torch.bfloat16, pattern, position)
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]

    bound = errors(choose(need(longest=513), "sdpa"), FullAttention(), NoPosition())
    assert all(a <= 2 * b for a, b in zip(errors(kernel, pattern, position), bound, strict=True))


def test_bins_hold_every_token_once_and_no_bin_more_than_fits():
    rng = np.random.default_rng(0)
    for size in (64, 128):
        lengths = rng.integers(1, size + 1, 300)
        first_S, count = fill(lengths, size)
        places = np.concatenate([np.arange(f, f + n) for f, n in zip(first_S, lengths, strict=True)])
        assert len(np.unique(places)) == lengths.sum()
        assert (first_S // size == (first_S + lengths - 1) // size).all()
        assert places.max() < count * size
        # Best fit in falling order needs at most 11/9 of the fewest bins, and one more (Johnson 1973).
        assert count <= 11 / 9 * np.ceil(lengths.sum() / size) + 4
    assert Bins.of(SequenceLayout.of_lengths([5, 97]), FullAttention(), CPU).size == 128


def test_dropout_of_bins_has_the_gradient_of_what_it_kept():
    """Finite differences under one seed, so that the same probabilities are dropped each time."""
    kernel, layout = BinnedKernel(), SequenceLayout.of_lengths([3, 1, 4])
    plan = kernel.plan(layout, FullAttention(), CPU)
    tensors = [torch.randn(8, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(q, k, v):
        torch.manual_seed(7)
        return kernel.attend(q, k, v, plan, pattern=FullAttention(), bias=AttentionBias(), dropout=0.4).o_THK

    assert torch.autograd.gradcheck(attend, tensors, fast_mode=True)
    torch.manual_seed(0)
    assert (
        kernel.attend(*tensors, plan, pattern=FullAttention(), bias=AttentionBias(), dropout=1.0).o_THK == 0
    ).all()


@pytest.mark.parametrize("kernel", [BinnedKernel(), MaskedSdpaKernel()], ids=lambda k: k.capability.name)
def test_kernels_refuse_what_their_records_do_not_list(kernel):
    q = torch.randn(2, 1, 4)
    plan = kernel.plan(SequenceLayout.of_lengths([2]), FullAttention(), CPU)
    with pytest.raises(KernelError):
        kernel.attend(q, q, q, plan, pattern=FullAttention(), bias=AttentionBias(), log_sum_exp=True)
    assert "Disentangled" in kernel.capability.refusal(need(position=Disentangled(8)))


needs_library = pytest.mark.skipif(
    isinstance(library.connected(), str), reason=f"no native library: {library.connected()}"
)
LENGTHS = [40, 7, 64, 33, 1, 139, 65]


def natively(q, k, v, do, pattern, dropout=0.0, seed=0):
    kernel, layout = NativeTrainingKernel(), SequenceLayout.of_lengths(LENGTHS)
    tensors = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(seed)
    plan = kernel.plan(layout, pattern, CPU)
    o_THK, _ = kernel.attend(*tensors, plan, pattern=pattern, bias=AttentionBias(), dropout=dropout)
    return [o_THK.detach(), *torch.autograd.grad(o_THK, tensors, do)]


@needs_library
@pytest.mark.parametrize("width", [16, 48])
@pytest.mark.parametrize(
    "pattern", [FullAttention(), CausalAttention(), SlidingWindow(9), SlidingWindow(70)], ids=str
)
def test_native_steps_are_those_of_float64_with_any_number_of_threads(pattern, width):
    generator = torch.Generator().manual_seed(0)
    # Queries, keys and values of one projection, as an encoder has them.
    qkv = torch.randn(sum(LENGTHS), 9, width, generator=generator)
    do = torch.randn(sum(LENGTHS), 3, width, generator=generator)
    q, k, v = qkv.split(3, 1)
    reference, layout = choose(need(), "reference"), SequenceLayout.of_lengths(LENGTHS)
    tensors = [x.double().requires_grad_() for x in (q, k, v)]
    plan = reference.plan(layout, pattern, CPU)
    o_THK, _ = reference.attend(*tensors, plan, pattern=pattern, bias=AttentionBias())
    exact = [o_THK.detach(), *torch.autograd.grad(o_THK, tensors, do.double())]
    threads, results = thread_count(), []
    try:
        for count in (1, 2):
            set_thread_count(count)
            results.append(natively(q, k, v, do, pattern))
    finally:
        set_thread_count(threads)
    for single, several, right in zip(*results, exact, strict=True):
        torch.testing.assert_close(single.double(), right, rtol=0, atol=1e-5)
        assert torch.equal(single, several)
    # Keys that are repeated for several heads lie elsewhere than queries.
    apart = natively(q, k.contiguous(), v.contiguous(), do, pattern)
    assert all(torch.equal(a, b) for a, b in zip(apart, results[0], strict=True))
    halves = natively(*(x.bfloat16() for x in (q, k, v, do)), pattern)
    assert all(x.dtype == torch.bfloat16 for x in halves)
    for half, right in zip(halves, exact, strict=True):
        assert (half.double() - right).norm() < 0.02 * right.norm()


@needs_library
def test_dropout_of_native_steps_follows_torch_and_has_the_gradient_of_what_it_kept():
    torch.manual_seed(0)
    pattern, tokens = FullAttention(), sum(LENGTHS)
    q, k, v, do = torch.randn(4, tokens, 3, 32)
    kept, *gradients = natively(q, k, v, do, pattern, 0.3)
    again = natively(q, k, v, do, pattern, 0.3)
    assert all(torch.equal(a, b) for a, b in zip((kept, *gradients), again, strict=True))
    assert not torch.allclose(kept, natively(q, k, v, do, pattern, 0.3, seed=1)[0], atol=1e-2)
    for number, gradient in enumerate(gradients):
        way, step = torch.randn(tokens, 3, 32), 1e-2
        ends = []
        for sign in (1, -1):
            moved = [q, k, v]
            moved[number] = moved[number] + sign * step * way
            ends.append(float((natively(*moved, do, pattern, 0.3)[0].double() * do).sum()))
        expected = (ends[0] - ends[1]) / (2 * step)
        assert float((gradient * way).sum()) == pytest.approx(expected, rel=1e-3, abs=0.02)
    # With equal values the result is the sum of kept probabilities, times what makes up for the others.
    sums = torch.stack(
        [natively(q, k, torch.ones_like(v), do, pattern, 0.3, s)[0][..., 0] for s in range(200)]
    )
    torch.testing.assert_close(sums.mean(0), torch.ones(tokens, 3), rtol=0, atol=0.25)
    assert float(sums.mean()) == pytest.approx(1, abs=5e-3)
    nothing = natively(q, k, v, do, pattern, 1.0)
    assert all((x == 0).all() for x in nothing)
    single = sums[:, sum(LENGTHS[:4])]  # a text of one token keeps its only probability or not
    assert {round(x, 2) for x in single.flatten().tolist()} == {0.0, 1.43}
    assert float((single == 0).float().mean()) == pytest.approx(0.3, abs=0.06)
    assert not torch.equal(single[:, 0], single[:, 1]), "each head draws for itself"


@needs_library
def test_layers_train_natively_where_the_library_can(monkeypatch):
    mixer = SoftmaxMixer(SoftmaxAttention(heads=2, head_width=16, pattern=FullAttention()), 32)
    layout = SequenceLayout.of_lengths([9, 4])

    def chosen(dtype, *, trains=True, kernel=None):
        x_TD = torch.zeros(13, 32, dtype=dtype, requires_grad=trains)
        return mixer.plan(layout, x_TD, kernel, {}).kernel.capability.name

    assert chosen(torch.float32) == "sdpa"
    monkeypatch.setenv(library.HIDDEN, "torch")
    assert train_natively(torch.nn.Sequential(mixer)) == 0
    assert chosen(torch.float32) == "sdpa"
    monkeypatch.delenv(library.HIDDEN)
    assert train_natively(torch.nn.Sequential(mixer)) == 1
    assert chosen(torch.float32) == "native-training"
    assert chosen(torch.float32, kernel="rows") == "rows"
    assert chosen(torch.float64) == "sdpa"
    mixer.requires_grad_(False)
    assert chosen(torch.float32, trains=False) == "sdpa"
    kernel, q = NativeTrainingKernel(), torch.randn(2, 1, 16)
    plan = kernel.plan(SequenceLayout.of_lengths([2]), FullAttention(), CPU)
    with pytest.raises(KernelError):
        kernel.attend(q, q, q, plan, pattern=FullAttention(), bias=AttentionBias.of(Alibi(), 1))


def trained_block(width, dropout=0.0):
    mixer = SoftmaxAttention(heads=1, head_width=16)
    block = Block(Layer(mixer, PlainFeedForward(4, "relu"), LayerNorm(1e-5), dropout=dropout), width)
    assert train_natively(torch.nn.Sequential(block)) == 1
    assert block.fused_add_norm is not None
    return block


def residual(x, h, norm, do, dropout=0.0, seed=0):
    block = trained_block(x.shape[1], dropout)
    tensors = [y.detach().requires_grad_() for y in (x, h)]
    torch.manual_seed(seed)
    y_TD = block.normalized_sum(*tensors, norm)
    return [y_TD.detach(), *torch.autograd.grad(y_TD, [*tensors, norm.weight, norm.bias], do)]


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 80])
def test_native_residuals_are_those_of_float64_with_any_number_of_threads(width, dtype):
    torch.manual_seed(0)
    x, h, do = torch.randn(3, 150, width)
    norm = torch.nn.LayerNorm(width, eps=1e-3)
    torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    exact_norm = copy.deepcopy(norm).double()
    tensors = [y.double().requires_grad_() for y in (x, h.to(dtype))]
    y_TD = exact_norm(tensors[0] + tensors[1])
    exact = [
        y_TD.detach(),
        *torch.autograd.grad(y_TD, [*tensors, exact_norm.weight, exact_norm.bias], do.double()),
    ]
    threads, results = thread_count(), []
    try:
        for count in (1, 2):
            set_thread_count(count)
            results.append(residual(x, h.to(dtype), norm, do))
    finally:
        set_thread_count(threads)
    assert results[0][2].dtype == dtype
    for number, (single, several, right) in enumerate(zip(*results, exact, strict=True)):
        near = 2e-5 if number != 2 or dtype == torch.float32 else 0.02
        torch.testing.assert_close(single.double(), right, rtol=0, atol=near)
        assert torch.equal(single, several)


@needs_library
def test_dropout_of_native_residuals_has_the_gradient_of_what_it_kept():
    torch.manual_seed(0)
    (x, h, do), norm = torch.randn(3, 150, 32), torch.nn.LayerNorm(32)
    result, dx, dh, *_ = residual(x, h, norm, do, 0.3)
    again = residual(x, h, norm, do, 0.3)
    assert torch.equal(again[0], result)
    assert torch.equal(again[2], dh)
    assert not torch.allclose(residual(x, h, norm, do, 0.3, seed=1)[0], result, atol=1e-2)
    share = 1 - round(0.7 * 65536) / 65536
    assert float((dh == 0).float().mean()) == pytest.approx(share, abs=0.02)
    kept = torch.where(dh == 0, 0.0, h / (1 - share))
    torch.testing.assert_close(result, norm(x + kept).detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(dh, torch.where(dh == 0, 0.0, dx / (1 - share)), rtol=1e-5, atol=1e-6)


@needs_library
@pytest.mark.parametrize(
    "norm", [torch.nn.LayerNorm(16, bias=False), torch.nn.RMSNorm(16), torch.nn.Identity()]
)
def test_residuals_that_the_library_lacks_are_those_of_torch(norm):
    block = trained_block(16)
    x, h = torch.randn(2, 5, 16, requires_grad=True)
    assert torch.equal(block.normalized_sum(x, h, norm), norm(x + h))
    wide = torch.nn.LayerNorm(18)
    assert torch.equal(
        block.normalized_sum(x.repeat(1, 2)[:, :18], h.repeat(1, 2)[:, :18], wide),
        wide((x + h).repeat(1, 2)[:, :18]),
    )
    double = torch.nn.LayerNorm(16).double()
    assert block.normalized_sum(x.double(), h.double(), double).dtype == torch.float64


@needs_library
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_runs_on_a_cpu_train_natively(tmp_path, monkeypatch, compiled):
    write_texts(tmp_path)
    calls = []

    def attend(*tensors, attend=NativeTrainingKernel.attend, **options):
        calls.append(options["dropout"])
        return attend(*tensors, **options)

    monkeypatch.setattr(NativeTrainingKernel, "attend", attend)
    monkeypatch.setattr(
        "unmask.training.pretrain.run.compile_blocks", partial(compile_blocks, backend="aot_eager")
    )
    torch._dynamo.reset()
    pretrain(write_run(tmp_path, steps=2, compile=compiled, evaluation=None), callback=Callback())
    assert set(calls) == {0.1}, "in training only"


@pytest.mark.parametrize(("rows", "inner", "outer_width"), [(1, 1, 1), (7, 5, 3), (1500, 33, 20)])
def test_products_are_those_of_float64(rows, inner, outer_width, monkeypatch):
    x, w = torch.randn(rows, inner), torch.randn(outer_width, inner)
    g = torch.randn(rows, outer_width)
    for takes in (True, False):
        if not takes:
            monkeypatch.setattr(products, "onednn_takes", lambda dtype: False)
        y, dw, dx = linear(x, w), outer(g, x), linear(g, w.t())
        for found, exact in ((y, x.double() @ w.double().T), (dw, g.double().T @ x.double())):
            torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-4)
        torch.testing.assert_close(dx.double(), g.double() @ w.double(), rtol=0, atol=2e-4)
    assert linear(torch.randn(0, inner), w).shape == (0, outer_width)


@pytest.mark.parametrize("bias", [True, False])
def test_a_trained_linear_is_the_plain_one_and_so_are_its_gradients(bias):
    torch.manual_seed(0)
    plain = torch.nn.Linear(24, 40, bias=bias)
    trained = copy.deepcopy(plain)
    assert train_with_onednn(trained) == 1
    assert type(trained) is TrainedLinear
    x = torch.randn(3, 50, 24)
    results = []
    for layer in (plain, trained):
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        y.square().sum().backward()
        results.append([y.detach(), inputs.grad, *(p.grad for p in layer.parameters())])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(trained(x), functional.linear(x, trained.weight, trained.bias))
    assert torch.equal(trained.double()(x.double()), plain.double()(x.double()))
    assert trained.state_dict().keys() == plain.state_dict().keys()


def test_the_gradient_of_a_trained_embedding_is_that_of_torch_in_the_same_memory_in_every_step():
    """Two micro-batches of one step, a weight that is also an output's, and a second step on other rows."""
    torch.manual_seed(0)
    plain = torch.nn.Embedding(50, 8)
    trained, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    if train_with_onednn(torch.nn.Sequential(trained)) == 0 and type(trained) is torch.nn.Embedding:
        pytest.skip("this torch has no oneDNN")
    assert type(trained) is TrainedEmbedding
    assert trained.state_dict().keys() == plain.state_dict().keys()
    places = set()
    for steps in ([[3, 3, 7], [7, 49]], [[1, 0, 1]], [[[2, 2], [5, 3]], [8]]):
        for ids in map(torch.tensor, steps):
            for layer in (plain, trained, exact):
                states = layer(ids)
                factors = torch.linspace(-1, 1, states.numel()).view(states.shape)
                (states * factors).sum().backward()
                (layer(ids) @ layer.weight.T).square().sum().backward()
        for layer in (plain, trained):
            torch.testing.assert_close(layer.weight.grad.double(), exact.weight.grad, rtol=1e-5, atol=1e-4)
        places.add(trained.weight.grad.data_ptr())
        for layer in (plain, trained, exact):
            layer.zero_grad(set_to_none=True)
    assert len(places) == 1
    assert trained.requires_grad_(False)(torch.tensor([1])).requires_grad is False
    assert torch.equal(trained.double()(torch.tensor([1])), exact(torch.tensor([1])))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # torch's RMSNorm
@pytest.mark.parametrize("name", SPECS)
def test_under_autocast_kernels_get_bfloat16_and_compute_as_they_say(name, monkeypatch):
    """The gradient of an encoder's weights comes as near to float32's as products in bfloat16 allow.

    The median of five draws: norms of what each part adds divide by small numbers now and then.
    """
    given = []
    here = threading.get_ident()
    for kernel in KERNELS:

        def attend(*tensors, kernel=kernel, own=kernel.attend, **options):
            if threading.get_ident() != here:  # a page of another test is still computing
                return own(*tensors, **options)
            given.append((kernel.capability.name, {x.dtype for x in tensors[:3]}))
            assert not torch.is_autocast_enabled("cpu")
            return own(*tensors, **options)

        monkeypatch.setattr(kernel, "attend", attend)
    errors = []
    for _ in range(5):
        ids = [torch.randint(5, VOCABULARY, (n,)).tolist() for n in (9, 4, 9)]
        gradients = []
        for autocast in (False, True):
            encoder, before = random_encoder(SPECS[name]), len(given)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y_TD = encoder.encode(PackedBatch.of_ids(ids))
            (y_TD.float() * torch.linspace(-1, 1, y_TD.numel()).view(y_TD.shape)).sum().backward()
            flat = [p.grad.flatten() for p in encoder.parameters() if p.grad is not None]
            gradients.append(torch.cat(flat))
            for kernel_name, dtypes in given[before:]:
                assert dtypes == {torch.bfloat16 if autocast else torch.float32}
                assert (kernel_name == "binned") <= autocast
        exact, found = gradients
        errors.append(float((found - exact).norm() / exact.norm()))
    assert sorted(errors)[2] < 0.12


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_an_encoder_with_trained_linears_compiles_without_gaps_and_agrees():
    ids = [torch.randint(0, VOCABULARY, (n,)).tolist() for n in (9, 4)]
    found = []
    for how in ("plain", "trained", "compiled"):
        encoder = random_encoder(SPECS["rotary-windows"])
        encoder.train()
        if how != "plain":
            assert train_with_onednn(encoder) > 0
        if how == "compiled":
            torch._dynamo.reset()
            compile_blocks(encoder, backend="aot_eager")
        torch.manual_seed(0)
        y = encoder.encode(PackedBatch.of_ids(ids))
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        grads = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        found.append((y.detach(), grads))
    for y, grads in found[1:]:
        torch.testing.assert_close(y, found[0][0], rtol=0, atol=1e-5)
        assert grads.keys() == found[0][1].keys()
        for key, grad in grads.items():
            torch.testing.assert_close(grad, found[0][1][key], rtol=1e-4, atol=1e-4)


def test_the_benchmark_trains_both_and_counts_padding(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    done = run_here(
        "training", "--architecture", "ettin-encoder-17m", "--layers", "1", "--threads", "1",
        "--tokenizer", str(tmp_path),
        "--sequences", "4", "--steps", "2", "--rounds", "1", "--longest", "24", "--json",
        "--precision", "float32", "--precision", "bfloat16", program=app,
    )  # fmt: skip
    assert done.code == 0, done.err
    report = json.loads(done.out)
    rows = {(row["engine"], row["precision"]): row for row in report["rows"]}
    assert list(rows) == [
        ("unmask", "float32"),
        ("trainer", "float32"),
        ("trainer grouped", "float32"),
        ("unmask", "bfloat16"),
    ]
    ours, theirs = rows["unmask", "float32"], rows["trainer", "float32"]
    assert ours["padding"] == 0 < theirs["padding"] < 1
    assert ours["to_trainer"]["median"] == pytest.approx(
        theirs["seconds_per_step"]["median"] / ours["seconds_per_step"]["median"]
    )
    assert report["objective"] == "masked tokens"
    assert report["loss_ours"] == pytest.approx(report["loss_theirs"], rel=1e-5)
    assert report["lengths"]["p100"] <= 24
    assert [one["name"] for one in report["left_out"]] == ["trainer"]


def test_the_benchmark_trains_a_classifier_where_no_head_predicts_tokens(tiny_folder, tmp_path):
    pytest.importorskip("accelerate")
    texts = tmp_path / "texts.txt"
    texts.write_text("".join("the " * words + "\n" for words in range(1, 9)))
    done = run_here(
        "training", "-m", str(tiny_folder), "--threads", "1", "--texts", str(texts),
        "--sequences", "4", "--steps", "2", "--rounds", "1", "--longest", "16", "--json",
        "--precision", "float32", "--precision", "autocast", program=app,
    )  # fmt: skip
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["objective"] == "classes of texts"
    assert report["loss_ours"] == pytest.approx(report["loss_theirs"], rel=1e-5)
    assert 0.1 < report["loss_ours"] < 5
    padding = {row["engine"]: row["padding"] for row in report["rows"]}
    assert padding["unmask"] == 0 < padding["trainer"] < 1


@pytest.mark.parametrize(
    "arguments",
    [("--sequences", "0"), ("--tokenizer", "/nowhere"), ("--model", "x", "--tokenizer", "/nowhere")],
)
def test_the_benchmark_refuses_in_one_sentence(arguments):
    shape = () if "--model" in arguments else ("--architecture", "ettin-encoder-17m", "--layers", "1")
    assert_one_sentence(run_here("training", *shape, *arguments, program=app))
