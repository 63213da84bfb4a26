"""The parts of an ELMo that a diagram shows."""

from typing import TYPE_CHECKING

from unmask.spec.diagram.parts import Block, Part, Parts

if TYPE_CHECKING:
    from unmask.spec.elmo import ElmoSpec

ACTIVATIONS = {"relu": "ReLU", "tanh": "tanh"}


def elmo_parts(spec: "ElmoSpec") -> Parts:
    """The parts of an ELMo (Peters et al. 2018): characters, recurrent layers, a mix of all of them."""
    filters = sum(count for _, count in spec.filters)
    widths = [width for width, _ in spec.filters]
    characters = Part("Character embedding", (f"{spec.characters} × {spec.character_width}",), "embedding")
    convolutions = Part(
        "Convolutions over characters",
        (
            f"{filters:,} filters over {min(widths)} to {max(widths)} characters",
            f"maximum, {ACTIVATIONS[spec.activation]}",
        ),
        "embedding",
    )
    highways = Part("Highway layers", (f"{spec.highways} of width {filters:,}",), "feedforward")
    projection = Part("Projection", (f"{filters:,} to {spec.width:,}",), "embedding")
    state = (f"{spec.cell_width:,} cells, projected to {spec.width:,}", "plus its input from layer 1 on")
    return Parts(
        source=f"characters of each word, at most {spec.word_characters}",
        summed=(characters,),
        before=(convolutions, *([highways] if spec.highways else []), projection),
        blocks=(
            Block(
                tuple(range(spec.layers)),
                (Part("Forward LSTM", state, "recurrent"), Part("Backward LSTM", state, "recurrent")),
                norm_first=None,
            ),
        ),
        layer_count=spec.layers,
        after=(),
        heads=(
            Part(
                "Learned mix",
                (f"words and {spec.layers} layers, both directions: width {2 * spec.width:,}",),
                "head",
            ),
        ),
    )
