"""The contract of every family with `transformers`, both ways, on random models of unusual shape.

Written by them and loaded by us: the hidden states of every layer and the logits of every head agree.
Written by us and loaded by them: every tensor is the same. A family adds a module to ``cases``.
"""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch.overrides import TorchFunctionMode

from tests.contracts.cases import Case, cases
from unmask.encoder.hooks import HookPoint
from unmask.spec import role_of
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

CASES = [pytest.param(case, id=str(case)) for case in cases()]

LOGITS = {
    "ForMaskedLM": {"masked": "logits"},
    "LMHeadModel": {"masked": "logits"},
    "ForCausalLM": {"masked": "logits"},
    "ForNextSentencePrediction": {"next_sentence": "logits"},
    "ForSequenceClassification": {"sequence": "logits"},
    "ForTokenClassification": {"tokens": "logits"},
    "ForQuestionAnswering": {"span": ("start_logits", "end_logits")},
    "ForMultipleChoice": {"choice": "logits"},
    "ForPreTraining": {
        "masked": "prediction_logits",
        "next_sentence": "seq_relationship_logits",
        "sentence_order": "sop_logits",
        "replaced": "logits",
    },
}
"""Where the classes of `transformers` put the logits of our heads."""


class Exact(TorchFunctionMode):
    """Wherever their code asks for float32 by name, as for rotary angles, it gets float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        wide = lambda value: torch.float64 if value is torch.float32 else value  # noqa: E731
        return function(*map(wide, args), **{key: wide(value) for key, value in (kwargs or {}).items()})


def random_model(case: Case) -> torch.nn.Module:
    """In float64, with every tensor moved so that norms and biases are uneven too."""
    torch.manual_seed(5)
    model_class = getattr(transformers, case.model)
    config = model_class.config_class(vocab_size=case.vocabulary, **case.settings)
    with Exact():
        model = model_class(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
        case.prepare(model)
    return model


def write_vocabulary(folder: Path, size: int) -> None:
    """Any tokenizer will do here: ids are given."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text(
        "\n".join([*words, *(f"w{i}" for i in range(size - len(words)))]) + "\n"
    )
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def their_outputs(model, case, ids, segments):
    """Hidden states (embedding's first), and logits by role."""
    inputs = {"input_ids": torch.tensor([ids]), **case.inputs}
    if segments is not None:
        inputs["token_type_ids"] = torch.tensor([segments])
    if case.global_tokens:
        marks = torch.zeros(1, len(ids), dtype=torch.long)
        marks[0, places_of(case, len(ids))] = 1
        inputs["global_attention_mask"] = marks
    with torch.inference_mode(), Exact():
        base = model.base_model(**inputs, output_hidden_states=True)
        if case.model.endswith("ForMultipleChoice"):  # its texts are the choices of a question
            length = torch.ones_like(inputs["input_ids"])
            inputs = {name: tensor[:, None] for name, tensor in (inputs | {"attention_mask": length}).items()}
        out = model(**inputs) if model.base_model is not model else base
    states = [*base.hidden_states[:-1], base.last_hidden_state]
    suffix = next((suffix for suffix in LOGITS if case.model.endswith(suffix)), None)
    logits = {}
    places = LOGITS.get(suffix, {}) if case.logits is None else case.logits
    for role, names in places.items():
        if isinstance(names, tuple):
            logits[role] = torch.stack([getattr(out, name)[0] for name in names], dim=-1).numpy()
        elif getattr(out, names, None) is not None:
            logits[role] = getattr(out, names)[0].numpy()
    # Some of their classes pad the text and give states of the padding too.
    return [state[0, : len(ids)].numpy() for state in states], logits


def places_of(case: Case, length: int) -> list[int]:
    return [place for place in case.global_tokens if place < length]


def texts_of(case: Case, model) -> tuple[list, list | None]:
    rng = np.random.default_rng(2)
    ids = [rng.integers(case.first_id, case.vocabulary, length).tolist() for length in case.lengths]
    kinds = getattr(model.config, "type_vocab_size", 0)
    takes = "token_type_ids" in inspect.signature(type(model.base_model).forward).parameters
    if not kinds or not takes:
        return ids, None
    return ids, [rng.integers(0, kinds, length).tolist() for length in case.lengths]


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def test_their_checkpoints_give_their_outputs(case, tmp_path):
    model = random_model(case)
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path, case.vocabulary)
    ids, segments = texts_of(case, model)
    model.train(case.training)
    expected = [their_outputs(model, case, text, segments and segments[i]) for i, text in enumerate(ids)]
    checkpoint = read_checkpoint(Source(tmp_path, "tiny"), case.compat)
    assert checkpoint.unread_config == ()
    marked = [places_of(case, len(text)) for text in ids] if case.global_tokens else None
    batch = PackedBatch.of_ids(ids, segments, marked)
    for dtype, tolerance in (("float64", 1e-10), ("float32", 1e-5)):
        encoder = build(checkpoint, dtype=dtype)
        states = []

        def listen(place, layer, tensor, states=states):
            if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
                states.append(tensor)

        with torch.inference_mode():
            x_TD = encoder.encode(batch, hook=listen)
            states[-1] = x_TD
            logits = {role: encoder.logits(role, x_TD, batch.layout) for role in encoder.heads}
        assert {role for _, theirs in expected for role in theirs} == set(logits)
        for sequence, (their_states, their_logits) in enumerate(expected):
            rows = batch.layout.rows(sequence)
            assert len(their_states) == len(states)
            for layer, (ours, theirs) in enumerate(zip(states, their_states, strict=True)):
                close(ours[rows], theirs, tolerance, f"{dtype}, text {sequence}, layer {layer}")
            for role, theirs in their_logits.items():
                ours = logits[role][rows if len(logits[role]) == len(x_TD) else sequence]
                close(ours.squeeze(-1) if theirs.ndim < ours.ndim else ours, theirs, tolerance, role)


def close(ours, theirs, tolerance, what):
    """Of the largest value, for a number format rounds in proportion to what it holds."""
    tolerance *= max(1.0, np.abs(theirs).max(initial=0.0))
    np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=tolerance, err_msg=what)


def test_our_checkpoints_are_theirs(case, tmp_path):
    model = random_model(case)
    (tmp_path / "theirs").mkdir()
    model.save_pretrained(tmp_path / "theirs")
    write_vocabulary(tmp_path / "theirs", case.vocabulary)
    for source, target in (("theirs", "ours"), ("ours", "again")):
        checkpoint = read_checkpoint(Source(tmp_path / source, source), case.compat)
        save(build(checkpoint, dtype="float64"), checkpoint, tmp_path / target)
    ours, again = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("ours", "again")
    )
    assert ours == again
    config = json.loads(ours["config.json"])
    assert (config["architectures"], config["model_type"]) == ([case.model], model.config.model_type)
    with Exact():
        back, report = type(model).from_pretrained(
            tmp_path / "ours", dtype=torch.float64, output_loading_info=True
        )
    assert not {name for name in report["missing_keys"] if not name.startswith(case.unused)}
    assert not report["unexpected_keys"]
    kept = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(case.unused)}
    for name, tensor in kept.items():
        assert torch.equal(back.state_dict()[name], tensor), name
    # Without the keys that were kept from theirs, what we write still says all of the spec.
    (tmp_path / "ours" / "unmask_checksums.json").unlink()
    (tmp_path / "ours" / "config.json").write_text(json.dumps(dict(checkpoint.family.write(checkpoint.spec))))
    assert read_checkpoint(Source(tmp_path / "ours", "ours"), case.compat).spec == checkpoint.spec


def test_no_text_sees_its_neighbors(case, tmp_path):
    """Alone or beside others, a text of one token and one of the longest have the same states and logits.

    In float64, where no rounding of wider products can be taken for a neighbor, or hide one.
    """
    random_model(case).save_pretrained(tmp_path)
    write_vocabulary(tmp_path, case.vocabulary)
    encoder = build(read_checkpoint(Source(tmp_path, "tiny"), case.compat), dtype="float64")
    of_tokens = {role_of(h) for h in encoder.spec.heads if getattr(h, "reads", "tokens").startswith("tokens")}
    longest = min(encoder.spec.max_tokens or 70, 120)
    rng = np.random.default_rng(3)
    texts = [rng.integers(case.first_id, case.vocabulary, length).tolist() for length in (1, longest, 7)]
    others = [rng.integers(case.first_id, case.vocabulary, length).tolist() for length in (7, 2)]

    def outputs(chosen):
        marked = [places_of(case, len(text)) for text in chosen] if case.global_tokens else None
        batch = PackedBatch.of_ids(chosen, None, marked)
        with torch.inference_mode():
            x_TD = encoder.encode(batch)
            logits = {role: encoder.logits(role, x_TD, batch.layout) for role in encoder.heads}
        each = []
        for sequence in range(len(chosen)):
            rows = batch.layout.rows(sequence)
            mine = {role: v[rows] if role in of_tokens else v[sequence] for role, v in logits.items()}
            each.append({"states": x_TD[rows], **mine})
        return each

    together = outputs([*texts, *others])
    beside_others = outputs([*others, *reversed(texts)])[::-1]
    for place, text in enumerate(texts):
        (alone,) = outputs([text])
        for name, values in alone.items():
            torch.testing.assert_close(together[place][name], values, rtol=0, atol=1e-10)
            torch.testing.assert_close(beside_others[place][name], values, rtol=0, atol=1e-10)
