"""docs/pretrain.md: its list of keys is made from the settings, and its examples are read as they stand.

python -m tests.training.test_pretrain_docs     write the list anew
"""

import ast
import dataclasses
import inspect
import re
import tomllib
from typing import Literal, Union, get_args, get_origin, get_type_hints

import unmask
from tests.support.places import REPOSITORY
from tests.training.runs import SENTENCE, Heard, changed, to_toml
from unmask.training.data.sources import SourceSpec
from unmask.training.objectives.build import TeacherChoice
from unmask.training.objectives.distillation import DistillationSpec
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import ReplacedSpec
from unmask.training.objectives.sentence_pairs import SentencePairSpec
from unmask.training.optim import OptimizerSpec, ScheduleSpec
from unmask.training.pretrain import pretrain
from unmask.training.run import settings
from unmask.training.run.log import EventLog
from unmask.training.run.settings import RunSettings
from unmask.training.run.state import FREE
from unmask.training.table import read_table

SIZES = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}

PAGE = REPOSITORY / "docs" / "pretrain.md"
BEGIN, END = "<!-- keys: written by tests/training/test_pretrain_docs.py -->", "<!-- end of keys -->"

TABLES = {
    "the outermost keys": RunSettings,
    "[model]": settings.ModelSettings,
    "[tokenizer]": settings.TokenizerSettings,
    "[data]": settings.DataSettings,
    "[[data.sources]] and [[data.held_out]]": SourceSpec,
    "[batch]": settings.BatchSettings,
    "[optimizer]": OptimizerSpec,
    "[schedule]": ScheduleSpec,
    "[averaging]": settings.AveragingSettings,
    "[faults]": settings.FaultSettings,
    "[evaluation]": settings.EvaluationSettings,
    "[checkpoints]": settings.CheckpointSettings,
    "[log]": settings.LogSettings,
    "[distributed]": settings.DistributedSettings,
    '[objective] with kind = "masked", and the table masking of others': MaskingSpec,
    '[objective] with kind = "sentence_pairs"': SentencePairSpec,
    '[objective] with kind = "replaced"': ReplacedSpec,
    '[objective] with kind = "distillation"': TeacherChoice,
    "and": DistillationSpec,
}


def said_of(kind):
    """Field -> the string that stands behind it in the source."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and text:
            found[field.target.id] = " ".join(after.value.value.split()).replace("``", "`")
    return found


def choices(kind):
    """The values of a literal, also of one that may be left out; none where other types are possible."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) is Union or type(kind).__name__ == "UnionType":
        parts = [part for part in get_args(kind) if part is not type(None)]
        return tuple(one for part in parts for one in choices(part)) if all(map(choices, parts)) else ()
    return ()


def default_of(field, own):
    if field.name in own:
        value = own[field.name]
        return (
            f'"{value}"'
            if isinstance(value, str)
            else str(list(value) if isinstance(value, tuple) else value)
        )
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is not dataclasses.MISSING else "needed"
    if field.default is None:
        return ""
    value = field.default
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def keys(tables=TABLES, defaults=None):
    """The list, as the page holds it; ``defaults`` are those of a table, by its class."""
    lines = []
    for title, kind in tables.items():
        lines += [f"**{title}**", ""]
        said, hints = said_of(kind), get_type_hints(kind)
        for field in dataclasses.fields(kind):
            default = default_of(field, (defaults or {}).get(kind, {}))
            some = ", ".join(f"`{one}`" for one in choices(hints[field.name]))
            parts = [part for part in (f"one of {some}" if some else "", said.get(field.name, "")) if part]
            shown = f" ({default})" if default else ""
            lines.append(f"- `{field.name}`{shown}" + (f": {'. '.join(parts)}" if parts else ""))
        lines.append("")
    return "\n".join(lines)


def test_the_list_of_keys_is_that_of_the_settings():
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == keys().strip(), "run python -m tests.training.test_pretrain_docs"


def test_every_settings_class_is_listed():
    listed = set(TABLES.values())
    for kind in (RunSettings, settings.DataSettings):
        for hint in get_type_hints(kind).values():
            for one in (hint, *get_args(hint)):
                if dataclasses.is_dataclass(one):
                    assert one in listed, one


def test_examples_are_run_files():
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        read_table(RunSettings, tomllib.loads(example), "")


def tiny(example, place, texts):
    """An example of the page with sizes, steps and text for a test; its paths stay as they are."""
    table = tomllib.loads(example)
    config = table["model"].get("config", {})
    config |= {key: SIZES[key] for key in config.keys() & SIZES.keys()}
    for source in [*table["data"]["sources"], *table["data"].get("held_out", [])]:
        (name,) = source["files"]
        path = place / name.replace("*", "one")
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts)
    changes = {"steps": 2, "batch": {"tokens": 2048, "micro_tokens": 2048}, "precision": "float32"}
    path = place / f"{table['name']}.toml"
    if "tokenizer" in table:
        table["tokenizer"] |= {"vocabulary": 300}
    path.write_text(to_toml(changed(table, **changes)))
    return path


def thetas(folder):
    spec = unmask.load(folder).spec
    return [layer.mixer.position.theta for layer in spec.layers[:2]], spec.trained_tokens


def test_the_second_phase_of_the_page_turns_whole_layers_more_slowly(tmp_path):
    """The small run and the phase after it, run as they stand but for sizes."""
    first, _, second = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = "\n\n".join([SENTENCE.capitalize() + "."] * 200)
    one = pretrain(tiny(first, tmp_path, text))
    assert thetas(one.folder) == ([10_000.0, 10_000.0], 128)
    callback = Heard()
    two = pretrain(tiny(second, tmp_path, text), callback=callback)
    assert thetas(two.folder) == ([160_000.0, 10_000.0], 512)
    said = next(sentence for sentence in callback.sentences if sentence.startswith("source long:"))
    assert int(re.search(r"of ([\d,]+) tokens \(median\)", said).group(1)) > 400


def test_what_may_be_changed_is_said():
    free = PAGE.read_text().partition("may be changed")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([\w.]+)`", free)) == FREE


def test_figures_of_the_log_are_explained(tmp_path, monkeypatch, place):
    from tests.training.runs import write_run
    from unmask.training.pretrain import pretrain

    seen = set()
    write = EventLog.write
    monkeypatch.setattr(
        EventLog, "write", lambda self, kind, step, **f: (seen.update(f), write(self, kind, step, **f))
    )
    pretrain(write_run(place, steps=1))
    text = PAGE.read_text()
    assert {name for name in seen if "/" not in name and f"`{name}`" not in text} == set()


if __name__ == "__main__":
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{keys()}\n{END}{rest.partition(END)[2]}")
