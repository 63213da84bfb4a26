"""Steps of a training loop in float64, by one process or by several: what a test compares."""

from dataclasses import replace

import torch

from tests.support.specs import ALIBI_SHARED, DISENTANGLED, ROTARY_WINDOWS, random_encoder
from tests.training.toy import chunks, vocabulary, with_heads
from unmask.encoder.encoder import Encoder
from unmask.spec import LearnedPositions, Pooler
from unmask.training.objectives.language_modeling import MaskedLanguageModel
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import ReplacedSpec, ReplacedTokenDetection
from unmask.training.optim import Ema, build_optimizer
from unmask.training.optim.updates import full_tensors
from unmask.training.pretrain.run import recompute_layers
from unmask.training.run.distributed import is_sharded, shard, unsharded
from unmask.training.run.loop import Loop, MetricAccumulator
from unmask.training.run.ranks import Ranks, joined
from unmask.training.run.settings import RunSettings
from unmask.training.table import read_table

STEPS = 2
MICRO_BATCHES = {"ddp": 5, "fsdp": 4}
"""Of a step: for two processes, ``ddp`` shares them unevenly."""


def with_dropout(spec):
    return replace(spec, layers=tuple(replace(layer, dropout=0.1) for layer in spec.layers))


def masked(spec):
    """With a pooler that no loss reaches."""
    encoder = random_encoder(replace(with_heads(with_dropout(spec)), pooler=Pooler()))
    return MaskedLanguageModel(encoder, vocabulary(), MaskingSpec(0.3))


def replaced():
    """With shared tables, a shift, and the generator's decoder, which runs its last layer twice."""
    apart = replace(DISENTANGLED.embedding, positions=LearnedPositions(64, added=False))
    discriminator = random_encoder(with_dropout(replace(DISENTANGLED, embedding=apart)))
    return ReplacedTokenDetection(
        discriminator,
        vocabulary(),
        ReplacedSpec(1.0, 1.0, "gradient_disentangled", masking=MaskingSpec(0.3, replacement="electra")),
    )


CASES = {
    "masked": lambda: masked(ROTARY_WINDOWS),
    "recomputed": lambda: masked(ROTARY_WINDOWS),
    "shared layers": lambda: masked(ALIBI_SHARED),
    "replaced": replaced,
}


class Texts:
    """A stream whose micro-batches are numbered from 0."""

    fill_ratio = 1.0

    def __init__(self):
        self.at = 0

    def next(self, count, *, rank, world):
        numbers = range(self.at, self.at + count)
        self.at += count
        return [micro_batch(number) for number in numbers[rank::world]]

    def state(self):
        return {}


def micro_batch(number):
    """Texts of other lengths each time, so that counts differ too."""
    return chunks([9 + number % 4, 4 + 3 * (number % 2), 6], range(3), seed=number)


def build(case, kind, ranks, optimizer="adamw"):
    settings = read_table(
        RunSettings,
        {
            "name": "toy",
            "steps": STEPS,
            "model": {"config": {"model_type": "bert"}},
            "tokenizer": {"folder": "none"},
            "data": {"sources": [{"name": "none", "files": ["none"]}]},
            "objective": {"kind": "masked"},
            "batch": {"tokens": MICRO_BATCHES[kind], "micro_tokens": 1},
            "optimizer": {"kind": optimizer, "learning_rate": 0.01, "weight_decay": 0.1, "clip": 0.5},
            "schedule": {"kind": "constant", "warmup_steps": 0},
            "distributed": {"kind": kind},
        },
        "",
    )
    torch.manual_seed(5)
    objective = CASES[case]().double().train()
    with torch.no_grad():
        for one in objective.parameters():
            one.add_(ranks.rank)  # the first process's weights count
    shard(objective, settings, ranks)
    if recomputes(case, ranks):
        recompute_layers(objective)
    moved = build_optimizer(objective, settings.optimizer)
    averages = Ema(objective, decay=0.9)
    return Loop(settings.loop, objective, Texts(), optimizer=moved, averages=averages, ranks=ranks)


def recomputes(case, ranks):
    """Whether layers are computed again in the backward pass: never in a single process."""
    return case == "recomputed" and ranks.world > 1


def attention_passes(loop, work):
    """What ``work`` returns, and how often the first layer's attention ran meanwhile."""
    encoder = next(part for part in loop.objective.modules() if isinstance(part, Encoder))
    passes = []
    counting = encoder.layers[0].attention.register_forward_hook(lambda *_: passes.append(1))
    made = work()
    counting.remove()
    return made, len(passes)


def first_gradients(loop):
    """Of the first step's global batch, whole; None where there is none."""
    ready = loop._make(0, 0)
    loop._gradients(ready.examples, ready.numbers, loop._totals(ready))
    found = {
        name: None if one.grad is None else full_tensors(one.grad).clone()
        for name, one in loop.objective.named_parameters()
    }
    loop.optimizer.zero_grad(set_to_none=True)
    loop.batches.at = 0
    return found


def results(case, kind, ranks, optimizer):
    """Everything that must be the same."""
    loop = build(case, kind, ranks, optimizer)
    gradients, passes = attention_passes(loop, lambda: first_gradients(loop))
    if case == "recomputed":
        own = MICRO_BATCHES[kind] // ranks.world
        assert passes == own * (2 if recomputes(case, ranks) else 1), passes
    found = {"gradients": gradients}
    before = loop.evaluate([micro_batch(number) for number in range(100, 103)])
    metrics = MetricAccumulator()
    norms = [loop.one_step(metrics) for _ in range(STEPS)]
    after = loop.evaluate([micro_batch(number) for number in range(100, 103)])
    found["figures"] = torch.tensor(
        [*before.values(), *after.values(), *metrics.means().values(), *norms], dtype=torch.float64
    )
    found["tokens"] = loop.tokens
    found["averages"] = {name: full_tensors(one) for name, one in loop.averages.averages.items()}
    assert is_sharded(loop.objective) == (kind == "fsdp" and ranks.world > 1)
    with unsharded(loop.objective, ranks):
        found["weights"] = {name: one.detach().clone() for name, one in loop.objective.state_dict().items()}
    return found


def compute(path, jobs):
    """Results of all jobs, written by the first process; for a process that torchrun started, or alone."""
    torch.set_num_threads(1)
    with joined() as ranks:
        made = [results(*job[:2], ranks, *job[2:]) for job in jobs]
        if ranks.first:
            torch.save(made, path)


def alone(job):
    return results(*job[:2], Ranks(), *job[2:])
