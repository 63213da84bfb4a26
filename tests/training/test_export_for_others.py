"""What a run exports says everything that `transformers` asks for, and is loaded without a warning."""

import json
import logging
import warnings

import pytest
import transformers

from tests.training.runs import Instead, write_run, write_texts
from unmask.training.pretrain import pretrain

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    write_texts(folder)
    return folder


def exported(texts, model_type, **model):
    path = write_run(
        texts,
        out=f"{model_type}{len(model)}",
        steps=1,
        model=Instead({"config": {"model_type": model_type, **SIZES}} | model),
        data={"held_out": []},
        evaluation={"every": 0},
        **({"tokenizer": None} if "start_from" in model else {}),
    )
    return pretrain(path).folder


@pytest.mark.parametrize("model_type", ["modernbert", "bert", "roberta", "albert", "electra", "deberta-v2"])
def test_transformers_loads_it_without_a_warning(model_type, texts, caplog):
    folder = exported(texts, model_type)
    config = json.loads((folder / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("pad", "bos", "cls", "eos", "sep")] == [0, 2, 2, 3, 3]
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    longest = 39 if model_type == "roberta" else 40  # its first row is the padding's
    assert tokenizer.model_max_length == longest
    pair = tokenizer("the river", "the bank", return_tensors="pt")
    assert ("token_type_ids" in pair) == (model_type not in ("modernbert", "deberta-v2"))
    assert model(**pair).logits.shape[:2] == pair["input_ids"].shape


def test_a_longer_second_phase_says_its_own_length(texts):
    exported(texts, "modernbert")
    folder = exported(
        texts, "modernbert", start_from="modernbert0/model", config={"max_position_embeddings": 50}
    )
    saved = json.loads((folder / "tokenizer_config.json").read_text())
    assert saved["model_max_length"] == 50
