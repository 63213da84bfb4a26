"""Adapters of every family: `peft` computes the same from ours, and we from those of `peft`."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

import unmask
from tests.contracts.cases import cases
from tests.contracts.test_transformers import (
    Exact,
    close,
    places_of,
    random_model,
    texts_of,
    their_outputs,
    write_vocabulary,
)
from unmask.encoder.layers.lora import updates
from unmask.errors import InvalidRequest
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.adapters.adapter import adapted, read_adapter
from unmask.weights.build import build
from unmask.weights.write.adapter_export import LowRank, add_low_rank, write_adapter

pytestmark = pytest.mark.long

ROLES = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "choice",
}
CASES = {case.model: case for case in reversed(cases()) if case.model.endswith(tuple(ROLES))}
KINDS = ("all-linear", "attention", "feedforward")


def of(*ends, slow=()):
    """The classes with these heads, of which some are tried in the long run only."""
    names = [name for name in sorted(CASES) if name.endswith(ends)]
    marks = [pytest.mark.slow if name.endswith(tuple(slow)) else () for name in names]
    params = [pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=True)]
    return pytest.mark.parametrize("made", params, indirect=True)


@pytest.fixture
def made(request, tmp_path):
    """A random model of `transformers` with a head, its folder, and that of its encoder alone."""
    case = CASES[request.param]
    model = random_model(case).train(case.training)
    for name, part in (("whole", model), ("base", model.base_model)):
        part.save_pretrained(tmp_path / name)
        write_vocabulary(tmp_path / name, case.vocabulary)
    whole, base = (read_checkpoint(Source(tmp_path / name, name), case.compat) for name in ("whole", "base"))
    role = next(role for end, role in ROLES.items() if case.model.endswith(end))
    return SimpleNamespace(case=case, model=model, whole=whole, base=base, role=role, folder=tmp_path)


def loaded_by_them(made, adapter):
    """`transformers` loads the encoder, and `peft` the adapter."""
    kind = getattr(transformers, made.case.model)
    with Exact():
        base = kind.from_pretrained(made.base.source.folder, config=made.model.config, dtype=torch.float64)
        both = PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False)
    return both.train(made.case.training).base_model.model


def outputs(made, theirs):
    """Their logits of some texts. BigBird's class reads every text densely after a short one."""
    ids, segments = texts_of(made.case, made.model)
    found = []
    for number, text in enumerate(ids):
        _, logits = their_outputs(theirs, made.case, text, segments and segments[number])
        found.append(logits[made.role])
    return found


def compare(made, expected, encoder, tolerance=1e-9):
    ids, segments = texts_of(made.case, made.model)
    marked = [places_of(made.case, len(text)) for text in ids] if made.case.global_tokens else None
    batch = PackedBatch.of_ids(ids, segments, marked)
    with torch.inference_mode():
        x_TD = encoder.encode(batch)
        logits = encoder.logits(made.role, x_TD, batch.layout)
    for number, theirs in enumerate(expected):
        rows = batch.layout.rows(number) if len(logits) == len(x_TD) else number
        close(logits[rows], theirs, tolerance, f"text {number}")


def randomized(encoder):
    for update in updates(encoder).values():
        torch.nn.init.normal_(update.a_PRK, std=0.3)
        torch.nn.init.normal_(update.b_NR, std=0.3)
    return encoder


def written(made, how):
    encoder = build(made.whole, dtype="float64")
    if how is not None:
        assert add_low_rank(encoder, made.whole.family, how) > 0
        randomized(encoder)
    out = made.folder / "adapter"
    write_adapter(
        encoder, made.whole, made.role, out, name="tried", base=made.base, how=how, dtype=torch.float64
    )
    return encoder, out


@pytest.mark.filterwarnings("ignore")
@of(*ROLES, slow=["ForQuestionAnswering", "ForMultipleChoice"])
def test_peft_reads_ours(made):
    experts = made.case.model.startswith("OpenAIPrivacyFilter")  # whose matrices adapters do not update
    kind = "attention" if experts else KINDS[sorted(CASES).index(made.case.model) % 3]
    encoder, folder = written(made, LowRank(2, 3.0, 0.0, kind))
    expected = outputs(made, loaded_by_them(made, folder))
    compare(made, expected, encoder)
    compare(
        made, expected, build(adapted(made.base, read_adapter(folder), made.case.compat), dtype="float64")
    )
    with pytest.raises(AssertionError):
        compare(made, outputs(made, made.model), encoder)


@pytest.mark.filterwarnings("ignore")
@of("ForTokenClassification")
def test_a_head_alone_is_an_adapter_too(made):
    _, folder = written(made, None)
    ours = build(adapted(made.base, read_adapter(folder), made.case.compat), dtype="float64")
    compare(made, outputs(made, made.model), ours)
    compare(made, outputs(made, loaded_by_them(made, folder)), build(made.whole, dtype="float64"))
    for compat in ("published", "hf"):
        loaded = unmask.load(made.folder / "base", adapter=folder, compat=compat)
        base = read_checkpoint(Source(made.folder / "base", "base"), compat)
        assert loaded.spec == adapted(base, read_adapter(folder), compat).spec


@pytest.mark.filterwarnings("ignore")
@of("ForSequenceClassification", "BigBirdForQuestionAnswering")
def test_we_read_those_of_peft(made):
    _, folder = written(made, LowRank(2, 3.0, 0.0, "all-linear"))
    config = json.loads((folder / "adapter_config.json").read_text())
    settings = LoraConfig(
        task_type=config["task_type"],
        r=3,
        lora_alpha=5,
        use_rslora=True,
        target_modules=config["target_modules"],
        modules_to_save=config["modules_to_save"],
    )
    theirs = get_peft_model(made.model, settings, autocast_adapter_dtype=False).train(made.case.training)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    theirs.save_pretrained(made.folder / "theirs")
    names = {path.name for path in (made.folder / "theirs").iterdir()}
    assert "unmask_adapter.json" not in names
    if config["task_type"] is None:
        with pytest.raises(
            InvalidRequest, match="the adapter theirs has the task_type None; it can be SEQ_CLS"
        ):
            read_adapter(made.folder / "theirs")
        return
    ours = build(adapted(made.base, read_adapter(made.folder / "theirs"), made.case.compat), dtype="float64")
    compare(made, outputs(made, theirs.base_model.model), ours)
