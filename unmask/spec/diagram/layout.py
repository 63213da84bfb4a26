"""Where the parts of an architecture are drawn: from the input at the bottom to the heads at the top."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unmask.errors import InvalidRequest, quoted
from unmask.spec import CheckpointOutput, EncoderSpec
from unmask.spec.describe import describe_layers
from unmask.spec.diagram.drawing import Box, Drawing, Label, Line, Shape, minimap, svg, text_width, wrap
from unmask.spec.diagram.parts import Block, Part, Parts, Variant, encoder_parts
from unmask.spec.shapes import parameter_count

if TYPE_CHECKING:
    from unmask.spec.elmo import ElmoSpec

COLUMN = 234.0
"""Points: one of two columns of a paper; two diagrams beside each other fill its page."""
MARGIN, BETWEEN_COLUMNS = 8.0, 18.0
TITLE, NAME, TEXT, SMALL = 9.0, 7.5, 7.0, 6.0
"""Sizes of type."""
LEADING = 1.28
PAD, GAP, ROW_GAP = 5.0, 11.0, 6.0
"""Inside of a box, between boxes above each other, beside each other."""
RESIDUAL, STRIP = 20.0, 34.0
"""Room beside a block's boxes: for residual sums on the left, for its layers on the right."""
ADD = 9.0
MAP = 30.0
CHIP = 6.0

INK, MUTED, FLOW, FRAME = "#1d1f24", "#636670", "#4a4d55", "#f6f7f9"
FILLS = {
    "embedding": ("#e6f1e4", "#5b8a55"),
    "norm": ("#f5f2d8", "#8b8440"),
    "attention": ("#dfeaf8", "#1d5aa8"),
    "recurrent": ("#dfeaf8", "#1d5aa8"),
    "feedforward": ("#fbe8d8", "#b4500b"),
    "head": ("#eee5f5", "#7a559c"),
}
ALIKE, DIFFERENT, DIFFERENT_INK = ("#f4f5f6", "#9a9ca3"), ("#fff3d1", "#c98a3c"), "#9c3f00"
"""Of parts that two encoders share, and of those in which they differ."""
VARIANTS = ("#1d5aa8", "#a9c7ea", "#b4500b", "#ecc39c", "#5b8a55", "#b9d6b4")
"""Of the kinds of attention in a block; neighbors differ in lightness."""


def architecture_drawing(
    *specs: "EncoderSpec | ElmoSpec",
    names: Sequence[str] = (),
    outputs: Sequence[CheckpointOutput | None] = (),
) -> Drawing:
    """The block diagram of one encoder, or of two beside each other.

    Layers that differ at most in their attention are drawn as one block with their number beside it, and a
    strip shows which layer has which attention. Of two encoders, the parts that differ are colored and the
    others gray.

    Args:
        specs: one or two encoders or ELMos.
        names: the title of each; without names there are no titles.
        outputs: what the checkpoint of each outputs, if it has such an output.

    Raises:
        InvalidRequest: there are no specs or more than two, or not as many names.
    """
    lengths = {len(specs), len(names) or len(specs), len(outputs) or len(specs)}
    if len(specs) not in (1, 2) or len(lengths) > 1:
        raise InvalidRequest(
            "a diagram shows one encoder or two, with as many names and outputs or none; given are "
            f"{len(specs)} and {len(names)} names and {len(outputs)} outputs"
        )
    for spec in specs:
        if not hasattr(spec, "layers") or not hasattr(spec, "width"):
            raise InvalidRequest(f"a diagram shows {quoted(spec)}; give an EncoderSpec, such as model.spec")
    every = [
        encoder_parts(spec, output) if isinstance(spec, EncoderSpec) else elmo_parts(spec)
        for spec, output in zip(specs, outputs or (None,) * len(specs), strict=True)
    ]
    others = [contents(parts) for parts in reversed(every)] if len(every) == 2 else [None]
    columns = []
    for number, (spec, parts) in enumerate(zip(specs, every, strict=True)):
        column = _Column(number * (COLUMN + BETWEEN_COLUMNS), others[number])
        column.heading(names[number] if names else "", _summary(spec))
        column.body(parts)
        columns.append(column)
    height = max(column.y for column in columns) + MARGIN
    # Both stand on the bottom line, where texts go in.
    shapes = [shape for column in columns for shape in column.shifted(height - MARGIN)]
    width = len(columns) * COLUMN + (len(columns) - 1) * BETWEEN_COLUMNS
    title = " and ".join(names) or "architecture of an encoder"
    return Drawing(width, height, title, tuple(shapes))


def _summary(spec: "EncoderSpec | ElmoSpec") -> str:
    if isinstance(spec, EncoderSpec):
        count = len(spec.layers)
        layers = f"{count} layer{'s' if count > 1 else ''}"
        heads = " with heads" if spec.heads else ""
        return f"{layers} of width {spec.width:,}, {parameter_count(spec):,} parameters{heads}"
    return f"{spec.layers} recurrent layers of width {spec.width:,} in each direction"


Contents = dict[tuple[str, str], object]
"""Parts, and what else can differ, by section and title."""


def contents(parts: Parts) -> Contents:
    """What two encoders are compared by."""
    compared: Contents = {}
    sections = (("input", (*parts.summed, *parts.before)), ("output", (*parts.after, *parts.heads)))
    for section, members in sections:
        compared |= {(section, part.title): comparable(part) for part in members}
    for number, block in enumerate(parts.blocks):
        compared |= {(f"block {number}", title): comparable(part) for part, title in numbered(block.parts)}
        compared[f"block {number}", "norms"] = block.norm_first, block.notes
        compared[f"block {number}", "layers"] = len(block.layers)
    return compared


def numbered(parts: Sequence[Part]) -> list[tuple[Part, str]]:
    """The parts of a block, with titles that are unique in it."""
    titles: Counter[str] = Counter()
    titled = []
    for part in parts:
        titles[part.title] += 1
        titled.append((part, f"{part.title} {titles[part.title]}"))
    return titled


def comparable(value: object) -> object:
    """What a part is compared by: not by the number of its layers, which the block says."""
    if isinstance(value, Part) and len(value.variants) == 1:
        return replace(value, variants=(replace(value.variants[0], layers=()),))
    return value


def words_of(part: object) -> set[str]:
    """The lines of a part."""
    if not isinstance(part, Part):
        return set()
    return {*part.lines, *(line for variant in part.variants for line in variant.lines)}


@dataclass
class _Column:
    """One diagram, laid out from the top down."""

    x: float
    other: Contents | None
    """What the other diagram shows; None for a diagram alone."""
    y: float = MARGIN
    shapes: list[Shape] = field(default_factory=list)
    heading_shapes: int = 0

    @property
    def left(self) -> float:
        return self.x + MARGIN

    @property
    def right(self) -> float:
        return self.x + COLUMN - MARGIN

    @property
    def middle(self) -> float:
        """Where the states flow: the middle of a block's boxes."""
        return (self.left + RESIDUAL + self.right - STRIP) / 2

    def shifted(self, bottom: float) -> Iterator[Shape]:
        """The shapes, those below the heading moved down so that the last one ends at ``bottom``."""
        down = bottom - self.y
        for number, shape in enumerate(self.shapes):
            yield shape if number < self.heading_shapes else _moved(shape, down)

    def heading(self, name: str, summary: str) -> None:
        width = self.right - self.left
        lines = [(line, TITLE, True) for line in wrap(name, width, TITLE, bold=True)]
        lines += [(line, TEXT, False) for line in wrap(summary, width, TEXT)]
        for line, size, bold in lines:
            self.y += size * LEADING
            color = INK if bold else MUTED
            self.shapes.append(Label(self.left, self.y - 0.3 * size, line, size, color, bold))
        self.y += GAP
        self.heading_shapes = len(self.shapes)

    def body(self, parts: Parts) -> None:
        """Everything below the heading; the output is at the top."""
        if len(parts.heads) > 1:
            self.fan_out(parts.heads)
        elif parts.heads:
            self.row(parts.heads, "output", self.left, self.right)
            self.arrow()
        else:
            self.caption("hidden states")
            self.arrow()
        for part in reversed(parts.after):
            self.row((part,), "output", *self.narrow)
            self.arrow()
        for number in reversed(range(len(parts.blocks))):
            self.block(parts.blocks[number], number, parts)
            self.arrow()
        for part in reversed(parts.before):
            self.row((part,), "input", *self.narrow)
            self.arrow()
        if len(parts.summed) > 1:
            self.sum_of(parts.summed)
        else:
            self.row(parts.summed, "input", *self.narrow)
        # Only the first of several embeddings is that of the tokens themselves.
        x = self.middles(len(parts.summed))[0] if len(parts.summed) > 1 else self.middle
        self.arrow(x)
        self.caption(parts.source, x)

    @property
    def narrow(self) -> tuple[float, float]:
        """The sides of a box as wide as those of a block."""
        return self.left + RESIDUAL, self.right - STRIP

    # --- pieces ------------------------------------------------------------------------------------------

    def arrow(self, x: float | None = None) -> None:
        """Upward, from what comes next to what was drawn last."""
        x = self.middle if x is None else x
        line = Line(((x, self.y + GAP), (x, self.y + 0.5)), FLOW, arrow=True)
        self.shapes.append(line)
        self.y += GAP

    def caption(self, text: str, x: float | None = None) -> None:
        x = self.middle if x is None else x
        for line in wrap(text, 2 * (x - self.left), TEXT):
            self.y += TEXT * LEADING
            self.shapes.append(Label(x, self.y - 0.3 * TEXT, line, TEXT, MUTED, anchor="middle"))

    def row(self, parts: Sequence[Part], section: str, left: float, right: float) -> None:
        """Boxes beside each other, of the height of the highest."""
        self.boxes([(part, part.title) for part in parts], section, left, right)

    def boxes(self, parts: Sequence[tuple[Part, str]], section: str, left: float, right: float) -> None:
        """Parts beside each other, each with its title in `contents`."""
        width = (right - left - ROW_GAP * (len(parts) - 1)) / len(parts)
        keys = [(section, title) for _, title in parts]
        inside = [self.inside(part, key, width) for (part, _), key in zip(parts, keys, strict=True)]
        height = max(tall for _, tall in inside)
        for number, ((part, _), key, (shapes, tall)) in enumerate(zip(parts, keys, inside, strict=True)):
            x, name = left + number * (width + ROW_GAP), ": ".join(key)
            fill, stroke = FILLS[part.kind] if self.other is None else ALIKE
            differs = self.differs(key, part)
            if differs:
                fill, stroke = DIFFERENT
            line_width = 1.3 if differs else 0.75
            self.shapes.append(Box(x, self.y, width, height, fill, stroke, 3.0, line_width, name))
            down = self.y + (height - tall) / 2
            self.shapes += [_named(_moved(shape, down, x), name) for shape in shapes]
        self.y += height

    def differs(self, key: tuple[str, str], value: object) -> bool:
        """Whether the other encoder has something else here."""
        return self.other is not None and self.other.get(key) != comparable(value)

    def inside(self, part: Part, key: tuple[str, str], width: float) -> tuple[list[Shape], float]:
        """What is inside a box, from its upper left corner, and its height."""
        shapes: list[Shape] = []
        y, inner = PAD, width - 2 * PAD
        theirs = None if self.other is None else words_of(self.other.get(key))
        lines = [(line, NAME, INK) for line in wrap(part.title, inner, NAME, bold=True)]
        lines += [
            (piece, TEXT, INK if theirs is None or line in theirs else DIFFERENT_INK)
            for line in part.lines
            for piece in wrap(line, inner, TEXT)
        ]
        for line, size, color in lines:
            y += size * LEADING
            shapes.append(Label(width / 2, y - 0.3 * size, line, size, color, size == NAME, "middle"))
        for number, variant in enumerate(part.variants):
            y += 4.0
            more, height = self.variant(variant, number, len(part.variants), inner, theirs)
            shapes += [_moved(shape, y, PAD) for shape in more]
            y += height
        return shapes, y + PAD

    def variant(
        self, variant: Variant, number: int, of: int, width: float, theirs: set[str] | None
    ) -> tuple[list[Shape], float]:
        """A map of the pattern with its description beside it."""
        drawn = minimap(variant.pattern, MAP)
        left = (MAP + 5.0) if drawn else 0.0
        lines = [
            (piece, TEXT, INK if theirs is None or line in theirs else DIFFERENT_INK)
            for line in variant.lines
            for piece in wrap(line, width - left, TEXT)
        ]
        count = len(lines)
        if of > 1:
            layers = describe_layers(variant.layers, last=number == of - 1)
            lines += [(line, SMALL, INK) for line in wrap(layers, width - left - CHIP - 3.0, SMALL)]
        high = sum(size * LEADING for _, size, _ in lines)
        height = max(MAP if drawn else 0.0, high)
        shapes: list[Shape] = [_moved(shape, (height - MAP) / 2) for shape in drawn]
        y = (height - high) / 2
        for place, (line, size, color) in enumerate(lines):
            y += size * LEADING
            shift = CHIP + 3.0 if place >= count else 0.0
            shapes.append(Label(left + shift, y - 0.3 * size, line, size, color))
            if place == count:
                chip = VARIANTS[number % len(VARIANTS)]
                shapes.append(Box(left, y - 0.3 * size - CHIP + 0.8, CHIP, CHIP, chip))
        return shapes, height

    def block(self, block: Block, number: int, parts: Parts) -> None:
        """The frame of a block: its boxes, residual sums on the left, its layers on the right."""
        top, at = self.y, len(self.shapes)
        section = f"block {number}"
        _, right = self.narrow
        self.y += 5.0
        words = {True: "pre-norm", False: "post-norm", None: ""}[block.norm_first]
        noted = self.differs((section, "norms"), (block.norm_first, block.notes))
        notes = [
            piece for note in (words, *block.notes) for piece in wrap(note, right - self.left - 4.0, SMALL)
        ]
        for note in notes:
            self.y += SMALL * LEADING
            color = DIFFERENT_INK if noted else MUTED
            self.shapes.append(Label(self.left + 4.0, self.y - 2.0, note, SMALL, color, noted))
        self.y += 3.0
        if block.norm_first is None:
            self.boxes(numbered(block.parts), section, self.left + 4.0, right)
        else:
            self.residual_block(block, section)
        self.y += 5.0
        tail = self.y
        frame = Box(self.left, top, right + 4.0 - self.left, tail - top, FRAME, "#c9ccd3", 4.0, name=section)
        self.shapes.insert(at, frame)
        self.strip(block, parts, top, tail, section)

    def residual_block(self, block: Block, section: str) -> None:
        """Two parts, each with its norm before or after, and a sum with its input."""
        left, right = self.narrow
        first, second, third, fourth = numbered(block.parts)
        if block.norm_first:
            order: list[tuple[Part, str] | None] = [None, fourth, third, None, second, first]
        else:
            order = [fourth, None, third, second, None, first]
        tops: list[float] = []
        for number, element in enumerate(order):
            if number:
                self.arrow()
            tops.append(self.y)
            if element is None:
                self.plus()
            else:
                self.boxes([element], section, left, right)
        tops.append(self.y + GAP)
        sums = [tops[number] + ADD / 2 for number, element in enumerate(order) if element is None]
        for height, branch in zip(sums, (3, 6), strict=True):
            # A sum's other input leaves above this element, counted from the top.
            start = tops[branch] - GAP / 2 if branch < len(order) else self.y + 3.0
            side = self.left + RESIDUAL / 2
            path = ((self.middle, start), (side, start), (side, height), (self.middle - ADD / 2, height))
            self.shapes.append(Line(path, FLOW, arrow=True))
        self.shapes.append(Line(((self.middle, self.y + 5.0), (self.middle, self.y)), FLOW, arrow=True))

    def plus(self) -> None:
        """The sign of a sum."""
        x, y, arm = self.middle, self.y + ADD / 2, ADD / 4
        self.shapes.append(Box(x - ADD / 2, self.y, ADD, ADD, "#ffffff", FLOW, ADD / 2))
        self.shapes.append(Line(((x - arm, y), (x + arm, y)), FLOW))
        self.shapes.append(Line(((x, y - arm), (x, y + arm)), FLOW))
        self.y += ADD

    def fan_out(self, parts: Sequence[Part]) -> None:
        """Several heads beside each other, which read the same states."""
        self.row(parts, "output", self.left, self.right)
        bar, low = self.y + GAP * 0.6, self.y + GAP * 1.1
        for x in self.middles(len(parts)):
            self.shapes.append(Line(((self.middle, bar), (x, bar), (x, self.y + 0.5)), FLOW, arrow=True))
        self.shapes.append(Line(((self.middle, low), (self.middle, bar)), FLOW))
        self.y = low

    def middles(self, count: int) -> list[float]:
        """The middles of boxes beside each other."""
        width = (self.right - self.left - ROW_GAP * (count - 1)) / count
        return [self.left + width / 2 + number * (width + ROW_GAP) for number in range(count)]

    def sum_of(self, parts: Sequence[Part]) -> None:
        """The embeddings, added."""
        self.plus()
        bar, low = self.y + GAP * 0.55, self.y + GAP * 1.1
        for x in self.middles(len(parts)):
            self.shapes.append(Line(((x, low), (x, bar), (self.middle, bar)), FLOW))
        self.shapes.append(Line(((self.middle, bar), (self.middle, self.y + 0.5)), FLOW, arrow=True))
        self.y = low
        self.row(parts, "input", self.left, self.right)

    def strip(self, block: Block, parts: Parts, top: float, bottom: float, section: str) -> None:
        """Every layer as a cell, the first at the bottom, colored by its kind of attention."""
        kinds = {
            layer: number
            for part in block.parts
            for number, variant in enumerate(part.variants)
            for layer in variant.layers
        }
        x, width = self.right - STRIP + 9.0, 8.0
        cell = (bottom - top) / parts.layer_count
        gap = min(1.0, 0.2 * cell)
        for layer in range(parts.layer_count):
            mine = layer in block.layers
            color = VARIANTS[kinds.get(layer, 0) % len(VARIANTS)] if mine else "#eceef1"
            self.shapes.append(
                Box(x, bottom - (layer + 1) * cell + gap / 2, width, cell - gap, color, name=f"layer {layer}")
            )
        noted = self.differs((section, "layers"), len(block.layers))
        color = DIFFERENT_INK if noted else INK
        times = f"× {len(block.layers)}"
        size = min(TITLE, TITLE * (self.right - x - width - 3.0) / text_width(times, TITLE, bold=True))
        middle = (top + bottom) / 2
        self.shapes.append(Label(x + width + 3.0, middle + 0.35 * size, times, size, color, bold=True))
        for layer, y in ((0, bottom - 0.5), (parts.layer_count - 1, top + SMALL * 0.8)):
            self.shapes.append(Label(x + width + 3.0, y, str(layer), SMALL, MUTED))


def _moved(shape: Shape, down: float, right: float = 0.0) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, points=tuple((x + right, y + down) for x, y in shape.points))
    return replace(shape, x=shape.x + right, y=shape.y + down)


def _named(shape: Shape, name: str) -> Shape:
    return replace(shape, inside=name) if isinstance(shape, Label) else shape


ELMO_ACTIVATIONS = {"relu": "ReLU", "tanh": "tanh"}


def elmo_parts(spec: "ElmoSpec") -> Parts:
    """The parts of an ELMo (Peters et al. 2018): characters, recurrent layers, a mix of all of them."""
    filters = sum(count for _, count in spec.filters)
    widths = [width for width, _ in spec.filters]
    characters = Part("Character embedding", (f"{spec.characters} × {spec.character_width}",), "embedding")
    convolutions = Part(
        "Convolutions over characters",
        (
            f"{filters:,} filters over {min(widths)} to {max(widths)} characters",
            f"maximum, {ELMO_ACTIVATIONS[spec.activation]}",
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


def architecture_svg(
    *specs: "EncoderSpec | ElmoSpec",
    names: Sequence[str] = (),
    outputs: Sequence[CheckpointOutput | None] = (),
) -> str:
    """The diagram of one encoder, or of two beside each other, as SVG; see `architecture_drawing`."""
    return svg(architecture_drawing(*specs, names=names, outputs=outputs))
