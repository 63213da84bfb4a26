"""Sinks: tokens that many heads give much, and whether that does anything."""

import numpy as np

from unmask.explorer.reading import Reading
from unmask.explorer.results import SinkLayer, Sinks
from unmask.explorer.routes.limits import MAX_LISTED
from unmask.explorer.routes.route import Route, of_text
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.see.layer_atlas import CLASSES
from unmask.see.sinks import EPSILON
from unmask.see.sinks import sinks as find


def sinks(reading: Reading, request: Request) -> Answer:
    """``GET texts/{id}/sinks?epsilon=``: of the layers that are measured so far, which may be none."""
    epsilon = request.share("epsilon", EPSILON)
    # A layer may be added meanwhile: all of the answer is of these.
    atlas = reading.atlas_now()
    layers = (
        [] if atlas is None else [(n, layer) for n, layer in enumerate(atlas.layers) if layer is not None]
    )
    if atlas is None or not layers:
        return json_answer(Sinks(epsilon, 1 / len(reading), 0, CLASSES, (), (), ()))
    found = find(atlas, epsilon, top=MAX_LISTED)
    return json_answer(
        Sinks(
            epsilon=epsilon,
            baseline=found.baseline,
            layers_ready=len(layers),
            classes=CLASSES,
            layers=tuple(
                SinkLayer(number, tuple(layer.classes_HX.mean(axis=0, dtype=np.float64).tolist()))
                for number, layer in layers
            ),
            tokens=tuple(found.tokens),
            heads=tuple(found.heads),
        )
    )


ROUTES = (Route("GET", "texts/*/sinks", of_text(sinks)),)
