"""The finding about the attention sink of a text."""

from collections.abc import Iterator

import numpy as np

from unmask.interpret.attention.sinks import EPSILON, Sinks
from unmask.interpret.overview.finding import Bar, Finding
from unmask.interpret.overview.heads import MeasuredHeads
from unmask.interpret.overview.names import percent

BARS = 5
"""Tokens whose shares are given."""

TIMES_EVEN = 2
"""How many times its even share a token must receive to be told."""


def sink(heads: MeasuredHeads, sinks: Sinks) -> Iterator[Finding]:
    """The token that most heads attend to regardless of the query, beside its even share."""
    total_N = np.zeros(heads.tokens)
    for _, layer in heads.layers:
        total_N += layer.attention_received_HN.sum(0, dtype=np.float64)
    mass_N = total_N / heads.count
    order = np.argsort(-mass_N, kind="stable")[:BARS].tolist()
    token, mass, even = order[0], float(mass_N[order[0]]), sinks.baseline
    own = [one for one in sinks.heads if one.token == token and one.mass > EPSILON]
    if mass < TIMES_EVEN * even or not own:
        return
    idle = sum(one.type == "no-op" for one in own)
    name = heads.names.token(token)
    sentence = (
        f"{name} is the attention sink: it receives {percent(mass)} of all attention, "
        f"{mass / even:.1f} times its even share of {percent(even)}."
    )
    if idle:
        sentence += (
            f" In {idle} of {heads.count} heads this writes almost nothing: its value vector is short."
        )
    yield Finding(
        kind="sink",
        sentence=sentence,
        value=mass,
        baseline=even,
        key=token,
        tokens=tuple(order),
        bars=tuple(Bar(heads.names.token(one), float(mass_N[one])) for one in order),
    )
