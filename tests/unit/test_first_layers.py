"""The first layers of an encoder alone: every family, both engines, other processes, an index, a command."""

import json
import pickle

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from tests.training.runs import write_texts
from tests.training.test_family_objectives import NAMES, config_of
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.search.index import Index
from unmask.text import Tokenizer
from unmask.text.batch import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.heads.classes import with_heads
from unmask.weights.read.checkpoint_tensors import with_first_layers
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder, with_tokenizer
from unmask.weights.write.save import save

TEXTS = ["The river bank was muddy.", "A text."]
TOGETHER = "embedding_gemma2"
"""Its layers read the embedding through one matrix."""
DEEP = [name for name in NAMES if name not in ("static", TOGETHER)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}


@pytest.mark.parametrize("family", DEEP)
def test_the_states_are_those_after_these_layers(family, tokenizer, tmp_path):
    """An encoder of the same first weights, by our names, is the definition."""
    config = with_heads(config_of(family, "masked"), frozenset())
    config = with_tokenizer(config, Tokenizer.from_files(tokenizer, config["model_type"]))
    checkpoint = new_checkpoint(config, tokenizer)
    whole = new_encoder(checkpoint, seed=1).eval()
    save(whole, checkpoint, tmp_path / "whole")
    stored = read_checkpoint(Source(tmp_path / "whole", family))
    shorter = with_first_layers(stored, 1)
    assert len(shorter.spec.layers) == 1
    found = build(shorter).eval()
    wanted = Encoder(shorter.spec).eval()
    state = whole.state_dict()
    wanted.load_state_dict({name: state[name] for name in wanted.state_dict()})
    packed = PackedBatch.of_ids([[5, 9, 7, 11], [8, 6]])
    batch = torch.from_numpy(packed.ids_T), packed.layout
    with torch.no_grad():
        torch.testing.assert_close(found(*batch), wanted(*batch), rtol=0, atol=0)
        assert not torch.equal(found(*batch), whole(*batch))
    if family == "esmc":  # what a layer adds is scaled by how many there are
        with pytest.raises(UnknownArchitecture, match="with 1 layers it is multiplied by"):
            save(found, shorter, tmp_path / "short")
        return
    save(found, shorter, tmp_path / "short")
    again = build(read_checkpoint(Source(tmp_path / "short", family))).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(*batch), found(*batch), rtol=0, atol=0)


def test_layers_that_belong_together_are_not_cut(tokenizer):
    config = with_heads(config_of(TOGETHER, "masked"), frozenset())
    config = with_tokenizer(config, Tokenizer.from_files(tokenizer, config["model_type"]))
    with pytest.raises(InvalidRequest, match="through one matrix, which is not cut; leave layers out"):
        with_first_layers(new_checkpoint(config, tokenizer), 1)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_transformers_with_three_layers_computes_the_same(backend):
    transformers = pytest.importorskip("transformers")
    model = unmask.load("default", layers=3, backend=backend)
    theirs = transformers.AutoModel.from_pretrained(model.checkpoint.source.folder).eval()
    theirs.encoder.layer = theirs.encoder.layer[:3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.checkpoint.source.folder)
    for text in TEXTS:
        with torch.no_grad():
            states = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vector = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
        np.testing.assert_allclose(model.embed([text])[0], vector, atol=1e-5)


def test_other_processes_and_an_index_have_the_same_depth(tiny_copy, tmp_path):
    model = unmask.load(tiny_copy, layers=1)
    assert model.layer_count == 1
    for other in (pickle.loads(pickle.dumps(model)), unmask.load(**model.load_arguments())):
        np.testing.assert_array_equal(other.embed(TEXTS), model.embed(TEXTS))
    assert model.content_digest != unmask.load(tiny_copy).content_digest
    index = Index.create(tmp_path / "index", model)
    index.add([{"id": "a", "text": TEXTS[0]}])
    again = Index.open(tmp_path / "index")
    assert again.search(TEXTS[0], mode="dense")[0].score == pytest.approx(1, abs=1e-5)
    with pytest.raises(InvalidRequest, match=r"the index was made with .*, 1 layers"):
        again.use(unmask.load(tiny_copy))


def test_a_wrong_depth_is_refused(tiny_copy):
    with pytest.raises(InvalidRequest, match=r"layers is 9, and .* has \d+; ask for fewer"):
        unmask.load(tiny_copy, layers=9)
    for layers in (0, -1, True, 1.5, "2"):
        with pytest.raises(InvalidRequest, match="layers is"):
            unmask.load(tiny_copy, layers=layers)
    with pytest.raises(InvalidRequest, match="the adapter was trained with all 6 layers"):
        unmask.load("default", adapter="sentiment", layers=2)


def test_the_command_line(tiny_copy):
    ran = run_here("similarity", *TEXTS, "-m", tiny_copy, "--first-layers", "1", "--json")
    expected, whole = (unmask.load(tiny_copy, layers=n).similarity(*TEXTS).item() for n in (1, None))
    assert json.loads(ran.out)["score"] == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(whole, abs=1e-3)
