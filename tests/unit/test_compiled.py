"""Compiled layers against the same encoder as it is: hidden states, loss and every gradient."""

import copy

import pytest
import torch

from tests.support.specs import SPECS, VOCABULARY, random_encoder
from unmask.encoder.encoder import compile_blocks, is_compiled
from unmask.errors import InvalidRequest
from unmask.text import PackedBatch

# Torch looks at a gradient that is not there while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(encoder, lengths, seed=0):
    """Hidden states and every gradient of a loss over them."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    encoder.zero_grad()
    hidden = encoder.encode(PackedBatch.of_ids(ids))
    (hidden * torch.randn(hidden.shape, generator=generator).to(hidden)).sum().backward()
    return hidden.detach(), {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}


def counting(graphs):
    """A backend that runs a graph as it is, and remembers it."""

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend


QUICK = "rotary-windows"


COMPILED = [name for name in SPECS if name not in ("experts", "sinks")]  # whose experts are refused by name


@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMPILED]
)
def test_every_encoder_can_be_compiled_and_stays_the_same(name):
    graphs = []
    plain = random_encoder(SPECS[name], dtype=torch.float64)
    compiled = compile_blocks(copy.deepcopy(plain), backend=counting(graphs))
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    for lengths in ((5, 1, 8), (3, 30)):
        expected, found = step(plain, lengths), step(compiled, lengths)
        assert found[1].keys() == expected[1].keys()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert graphs


def test_layers_of_one_shape_share_what_was_compiled():
    graphs = []
    encoder = compile_blocks(random_encoder(SPECS["post-norm"]), backend=counting(graphs))
    step(encoder, (4, 6))
    assert len(encoder.layers) == 3
    assert len(graphs) == 2
    for lengths in ((1, 9), (10,), (3, 3, 4)):
        step(encoder, lengths)
    assert len(graphs) == 2, "batches of one number of tokens were compiled more than once"
    for lengths in ((4, 7), (20,), (3, 3, 9)):
        step(encoder, lengths)
    assert len(graphs) == 4, "a second number of tokens was not compiled for all numbers"


def test_compiled_once():
    encoder = random_encoder(SPECS["rotary-windows"])
    assert not is_compiled(encoder)
    before = step(encoder, (4,))[0]
    compile_blocks(encoder, backend="eager")
    assert is_compiled(encoder)
    with pytest.raises(InvalidRequest, match="compiled already"):
        compile_blocks(encoder)
    torch.testing.assert_close(step(encoder, (4,))[0], before, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what Inductor itself uses that is deprecated
@pytest.mark.parametrize("name", ["rotary-windows", "post-norm"])
def test_a_training_step_by_inductor_is_the_plain_step(name):
    steps = []
    for compiled in (False, True):
        encoder = random_encoder(SPECS[name]).train()
        if compiled:
            compile_blocks(encoder)
        optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-3)
        for number in range(3):
            hidden, gradients = step(encoder, (9, 2, 5), seed=number)
            optimizer.step()
        steps.append((hidden, gradients))
    torch.testing.assert_close(*steps, rtol=1e-3, atol=1e-4)
