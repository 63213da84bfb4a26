"""jina-embeddings-v3 as it is published: matrices with updates for five tasks, beside `transformers`."""

import json
import pickle

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import unmask
from tests.parity.test_downloaded import SIZES, write_modules
from tests.parity.test_published_folders import write_encoder
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import change_tensors
from unmask.errors import CorruptCheckpoint, InvalidRequest

TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
PROMPTS = {"retrieval.query": "the text ", "retrieval.passage": "a river ", **dict.fromkeys(TASKS[2:], "")}
TEXTS = ["the river bank", "another text was muddy!", "a"]
RANK, ALPHA = 4, 3

HF = {
    "model_type": "jina_embeddings_v3",
    **SIZES,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8194,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}
PUBLISHED = HF | {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
    "emb_pooler": None,
    "load_trained_adapters": True,
    "lora_adaptations": TASKS,
    "lora_alpha": ALPHA,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": RANK,
    "matryoshka_dimensions": [8, 16],
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "task_instructions": PROMPTS,
    "truncate_dim": None,
    "use_flash_attn": True,
}


def write_published(folder, dtype=torch.float32):
    """The folder; returns for each task the tensors of `transformers` with the task's update merged."""
    write_encoder(folder, HF)
    write_modules(folder, ["1_Pooling mean", "2_Normalize"])
    stored = load_file(folder / "model.safetensors")
    merged = [dict(stored) for _ in TASKS]
    tensors = {}
    torch.manual_seed(11)
    for name, tensor in stored.items():
        if tensor.dim() != 2:
            tensors[f"roberta.{name}"] = tensor
            continue
        rows, columns = tensor.shape
        table = "embeddings." in name
        a = torch.randn(len(TASKS), *((rows, RANK) if table else (RANK, columns)))
        b = torch.randn(len(TASKS), *((RANK, columns) if table else (rows, RANK)))
        for task in range(len(TASKS)):
            update = a[task] @ b[task] if table else b[task] @ a[task]
            merged[task][name] = tensor + ALPHA / RANK * update
        module = "roberta." + name.removesuffix(".weight") + ".parametrizations.weight"
        tensors |= {f"{module}.original": tensor, f"{module}.0.lora_A": a, f"{module}.0.lora_B": b}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    settings = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return merged


def expected_of(folder, merged, model, prompt):
    """Mean-pooled unit vectors by `transformers`, from merged weights."""
    plain = folder.parent / "merged"
    write_encoder(plain, HF)
    save_file(merged, plain / "model.safetensors", metadata={"format": "pt"})
    encoder = transformers.AutoModel.from_pretrained(plain).eval()
    vectors = []
    for text in TEXTS:
        ids = torch.tensor([model.tokenize(prompt + text).ids.tolist()])
        with torch.no_grad():
            vectors.append(torch.nn.functional.normalize(encoder(ids).last_hidden_state[0].mean(0), dim=0))
    return torch.stack(vectors).numpy()


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_weights_and_a_prompt(task, tmp_path):
    merged = write_published(tmp_path / "model")
    model = unmask.load(tmp_path / "model", adapter=task)
    assert model.checkpoint.family.name == "jina_v3"
    expected = expected_of(tmp_path / "model", merged[TASKS.index(task)], model, PROMPTS[task])
    np.testing.assert_allclose(model.embed(TEXTS), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.embed_query(TEXTS), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.embed_document(TEXTS), expected, rtol=0, atol=1e-5)
    assert np.abs(model.embed(TEXTS, prompt="") - expected).max() > 0.01 or not PROMPTS[task]
    other = unmask.load(tmp_path / "model", adapter=TASKS[TASKS.index(task) - 1])
    assert np.abs(other.embed(TEXTS, prompt=PROMPTS[task]) - expected).max() > 0.05
    assert other.content_digest() != model.content_digest()
    plain = unmask.load(tmp_path / "model", adapter=task, backend="torch")
    np.testing.assert_allclose(plain.embed(TEXTS), expected, rtol=0, atol=1e-5)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))


def test_a_saved_copy_is_of_one_task(tmp_path):
    """Both libraries read the copy, without a choice and without updates."""
    merged = write_published(tmp_path / "model")
    model = unmask.load(tmp_path / "model", adapter="separation")
    expected = expected_of(tmp_path / "model", merged[2], model, "")
    model.save(tmp_path / "saved")
    ran = run_here("convert", tmp_path / "model", tmp_path / "converted", "--task", "separation")
    assert ran.code == 0, ran.err
    for folder in (tmp_path / "saved", tmp_path / "converted"):
        copy = unmask.load(folder)
        assert copy.checkpoint.tasks == ()
        np.testing.assert_allclose(copy.embed(TEXTS), expected, rtol=0, atol=1e-5)
        assert "lora_adaptations" not in json.loads((folder / "config.json").read_text())
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "saved").eval()
    ids = model.tokenize(TEXTS[0]).ids.tolist()
    with torch.no_grad():
        states = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(model.hidden_states([ids])[0], states, rtol=0, atol=2e-5)


def test_bfloat16_weights_are_updated_in_float32(tmp_path):
    write_published(tmp_path / "model", torch.bfloat16)
    native = unmask.load(tmp_path / "model", adapter="text-matching")
    plain = unmask.load(tmp_path / "model", adapter="text-matching", backend="torch")
    np.testing.assert_allclose(native.embed(TEXTS), plain.embed(TEXTS), rtol=0, atol=1e-5)


def test_a_task_is_chosen_by_name(tmp_path):
    write_published(tmp_path / "model")
    with pytest.raises(InvalidRequest, match=r"choose one with adapter=.*retrieval\.query, retr"):
        unmask.load(tmp_path / "model")
    with pytest.raises(InvalidRequest, match="the task is 'search'; model has weights for retr"):
        unmask.load(tmp_path / "model", adapter="search")
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    ran = run_here("embed", path, "--model", tmp_path / "model", "--adapter", "classification")
    assert ran.code == 0, ran.err
    vectors = [json.loads(line)["embedding"] for line in ran.out.splitlines()]
    expected = unmask.load(tmp_path / "model", adapter="classification").embed(TEXTS)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)
    assert_one_sentence(run_here("embed", path, "--model", tmp_path / "model"), "choose one with adapter=")


def test_damaged_updates_are_refused(tmp_path):
    write_published(tmp_path / "model")
    folder, key = tmp_path / "model", "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_B"
    whole = load_file(folder / "model.safetensors")
    for changed in (None, whole[key][:, :-1].contiguous(), whole[key][:4].contiguous()):
        save_file(whole, folder / "model.safetensors")

        def change(tensors, changed=changed):
            tensors.pop(key)
            if changed is not None:
                tensors[key] = changed

        change_tensors(folder, change)
        with pytest.raises(CorruptCheckpoint, match=r"Wqkv.*no two factors of an update that fit"):
            unmask.load(folder, adapter="separation")
    save_file(whole, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"lora_adaptations": TASKS[:3]}))
    with pytest.raises(CorruptCheckpoint, match="names 3 tasks and the weights have updates for 5"):
        unmask.load(folder, adapter="separation")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"lora_rank": 0}, "lora_rank is 0; it must be at least 1"),
        ({"lora_alpha": "x"}, "lora_alpha is 'x'"),
    ],
)
def test_a_config_of_tasks_that_cannot_be_is_refused(keys, says, tmp_path):
    write_published(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(PUBLISHED | keys))
    with pytest.raises(CorruptCheckpoint, match=says):
        unmask.load(tmp_path / "model", adapter=TASKS[0])
