"""A page that holds a model: it computes what Python computes, asks for nothing, and refuses in sentences."""

import base64
import dataclasses
import json
import random
import runpy
import unicodedata
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from conftest import PATIENCE
from fake_model import FakeModel

import unmask
from tests.support.places import REPOSITORY
from tests.support.specs import (
    BLOCKS,
    CAUSAL,
    DISENTANGLED,
    LINEAR,
    POST_NORM,
    SPECS,
    WINDOWS_GLOBALS,
    random_encoder,
)
from tests.support.tokenizers_built import of_bytes, of_pieces
from unmask.cli.look.report import report
from unmask.engines.native.tables import PositionTables
from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.explorer.api import Api
from unmask.explorer.export import live_model as module
from unmask.explorer.export.live_model import LIVE, as_text, live_model, unsupported_in_page
from unmask.explorer.routes.live import live_reading
from unmask.explorer.sessions.described import text_read
from unmask.explorer.wire.binary import unpack
from unmask.families.native import to_config
from unmask.interpret.corpus.texts import shipped_corpus
from unmask.interpret.geometry.reading import causal_twin
from unmask.interpret.words.words import words
from unmask.spec import (
    GatedFeedForward,
    Layer,
    LayerNorm,
    PlainFeedForward,
    Projection,
    Rotary,
    SoftmaxAttention,
)
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder
from unmask.weights.write.save import save

pytestmark = pytest.mark.long

TEXTS = [
    ("The river bank was muddy, so we took the money to the bank.", None),
    ("Café, naïve, 東京 and 🙂 are words too.", None),
    ("ΣΊΣΥΦΟΣ и русский текст; don't, 3.14", None),
    ("שלום עולם مرحبا بالعالم", None),
    ("हिन्दी में लिखा हुआ पाठ", None),
    ("안녕하세요 세계 ガギグ", None),
    ("bank " * 30, None),
    ("a", None),
    ("typed [MASK] and <mask> words", None),
    ("Where is the bank?", "The bank is near the river."),
]

READ = """async ([text, pair, future]) => {
    const path = `live?model=0&text=${encodeURIComponent(text)}`;
    const query = (pair === null ? '' : `&pair=${encodeURIComponent(pair)}`) + `&future=${future}`;
    const { status, data } = await window.unmaskLive.get(path + query);
    let binary = '';
    const bytes = new Uint8Array(data);
    for (let at = 0; at < bytes.length; at += 8192) {
        binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
    }
    return [status, btoa(binary)];
}"""

TOKENS = """async (texts) => {
    const read = [];
    for (const text of texts) {
        const { status, data } = await window.unmaskLive.get(`live?text=${encodeURIComponent(text)}`);
        const end = new DataView(data).getUint32(4, true);
        const header = () => JSON.parse(new TextDecoder().decode(new Uint8Array(data, 8, end)));
        read.push(status === 200 ? header().meta.read : null);
    }
    return read.map((one) => one && [one.tokens, one.words]);
}"""


@contextmanager
def opened(browser, path):
    """A file in a browser without a network; nothing but the file may be asked for, and nothing go wrong."""
    asked, errors = [], []
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert [url for url in asked if not url.startswith((path.as_uri(), "data:", "blob:"))] == []
    assert errors == []


def write_page(model, path, weights="float32"):
    """A page with nothing but the model."""
    script = (LIVE / "live.js").read_text(encoding="utf-8")
    text = f'<script type="text/plain" id="unmask-live">{live_model(model, weights)}</script>'
    path.write_text(f'<!doctype html><meta charset="utf-8">{text}<script type="module">{script}</script>')
    return path


def computed(page, text, pair=None, future="shown"):
    """Arrays and description of a text, as the page computes them."""
    status, data = page.evaluate(READ, [text, pair, future])
    assert status == 200, base64.b64decode(data)
    arrays, meta = unpack(base64.b64decode(data))
    return arrays, meta["read"]


def refusal(page, text, pair=None):
    status, data = page.evaluate(READ, [text, pair, "shown"])
    assert status == 422
    return json.loads(base64.b64decode(data))["error"]


@dataclasses.dataclass
class Place:
    """What `text_read` asks of a model's place."""

    name: str
    index: int = 0


def expected(model, text, pair=None, future="shown"):
    """A reading of a text in Python, and its description."""
    encoding = model.tokenizer.encode(text, pair)
    read = text_read("live", Place(model.name), model, words(encoding))
    encoder = model.trainable_encoder(replace=False)
    encoder = causal_twin(encoder) if future == "hidden" else encoder
    return live_reading(encoder, encoding, read.heads), read


def differences(arrays, reading):
    """Of attention, and of states, norms and words in units of their typical size."""
    for name, values in (
        ("attention", reading.attention_ANN),
        ("states", reading.states_LND),
        ("norms", reading.norms_AN),
        ("words", reading.words_NE),
    ):
        assert arrays[name].shape == values.shape
        yield np.abs(arrays[name] - values) / (1 if name == "attention" else max(np.abs(values).mean(), 1))


def check_equal(page, model, texts=TEXTS, bound=1e-4):
    for text, pair in texts:
        for future in ("shown", "hidden"):
            arrays, read = computed(page, text, pair, future)
            reading, described = expected(model, text, pair, future)
            # The page may read less than the model does.
            assert {**read, "max_tokens": None} == {**plain(described), "max_tokens": None}
            assert max(part.max() for part in differences(arrays, reading)) < bound


def plain(read):
    """As JSON has it."""
    return json.loads(json.dumps(dataclasses.asdict(read)))


# --- every part of an encoder ------------------------------------------------------------------------

TURNED = replace(
    POST_NORM,
    embedding=replace(POST_NORM.embedding, positions=None, segments=0),
    layers=tuple(
        Layer(
            SoftmaxAttention(3, 8, position=Rotary(500.0, width, interleaved=interleaved, scale=2.0)),
            network,
            LayerNorm(1e-6),
            norm_first=True,
        )
        for width, interleaved, network in (
            (4, True, PlainFeedForward(21, "relu")),
            (6, False, GatedFeedForward(19, "gelu_tanh")),
            (None, True, PlainFeedForward(22, "tanh", bias=False)),
        )
    ),
)
NARROW = replace(POST_NORM.embedding, width=11)
ENCODERS = {
    **{
        name: SPECS[name]
        for name in ("post-norm", "rotary-windows", "alibi-shared", "relative", "grouped", "tasks")
    },
    "causal": replace(CAUSAL, layers=CAUSAL.layers[:2]),
    "turned": TURNED,
    "projected": replace(POST_NORM, embedding=replace(NARROW, projection=Projection())),
    "projected-first": replace(
        POST_NORM, embedding=replace(NARROW, projection=Projection(bias=False, before_norm=True))
    ),
}


def written(spec, tokenizer, folder):
    """A model with random weights that reads with this tokenizer."""
    spec = replace(spec, embedding=replace(spec.embedding, vocabulary=tokenizer.vocabulary_size))
    checkpoint = new_checkpoint(to_config(spec), tokenizer.files, name=folder.name)
    save(random_encoder(checkpoint.spec), checkpoint, folder)
    return unmask.load(folder, dtype="float32")


@pytest.mark.parametrize("name", ENCODERS)
def test_every_part_is_computed_as_in_python(name, browser, tmp_path):
    tokenizer = of_bytes() if name in ("grouped", "relative") else of_pieces()
    model = written(ENCODERS[name], tokenizer, tmp_path / name)
    most = model.max_tokens or 64
    texts = [(text, pair) for text, pair in TEXTS if len(tokenizer.encode(text, pair)) <= most]
    assert len(texts) > 4
    with opened(browser, write_page(model, tmp_path / "page.html")) as page:
        check_equal(page, model, texts)


# --- real models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "unmask-mini"])
def test_a_real_model_is_computed_as_in_python(name, browser, tmp_path):
    model = unmask.load(name)
    with opened(browser, write_page(model, tmp_path / "page.html")) as page:
        check_equal(page, model)


def test_whole_numbers_are_off_by_little(browser, default_model, tmp_path):
    """Attention by 0.095 at most and 0.0007 in the mean, when this was written."""
    path = write_page(default_model, tmp_path / "page.html", "int8")
    with opened(browser, path) as page:
        parts = [
            list(differences(computed(page, text, pair)[0], expected(default_model, text, pair)[0]))
            for text, pair in TEXTS
        ]
    attention, states, norms, _ = (
        np.concatenate([part.ravel() for part in each]) for each in zip(*parts, strict=True)
    )
    assert attention.max() < 0.12
    assert attention.mean() < 0.001
    assert states.max() < 0.2
    assert states.mean() < 0.01
    assert norms.max() < 0.2


# --- tokens ------------------------------------------------------------------------------------------

SCRIPTS = (
    *((0x20, 0x7E), (0xA1, 0x17F), (0x300, 0x345), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA)),
    *((0x620, 0x655), (0x904, 0x939), (0xE01, 0xE3A), (0x1100, 0x1175), (0x1E00, 0x1EFF), (0x2010, 0x2030)),
    *((0x3041, 0x30FF), (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0xFB00, 0xFB06), (0xFF01, 0xFF5E)),
    *(
        (0xA0, 0x1FFFF),
        (0x1F1E6, 0x1F1FF),
        (0x1F3FB, 0x1F3FF),
        (0x1F600, 0x1F640),
        (0x20000, 0x20020),
        (0x200B, 0x200F),
    ),
)
HARD = [
    *("a" * 500, "ab " * 250, "[CLS] typed [MASK] [SEP]", "word[MASK]word  [MASK] .", "  many    spaces  "),
    *("👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷", "tab\tnew\nline\r\n\x85\xa0\u2028end", "ΣΊΣΥΦΟΣ Σ ΑΣ.", "İstanbul ISTANBUL ı"),
    *(
        "x\u0301\u0323 e\u0301\u0323 q\u0307\u0323",
        "각 \u1100\u1161\u11a8",
        "'quoted' ``so''",
        "\x1c x \x7f \ufeff\u200b y",
    ),
]


def random_texts(count):
    draw = random.Random(7)
    for _ in range(count):
        chosen = [draw.choice(SCRIPTS) for _ in range(draw.randint(1, 3))]
        codes = [draw.randint(*draw.choice(chosen)) for _ in range(draw.randint(1, 40))]
        text = "".join(chr(code) if draw.random() < 0.85 else " " for code in codes)
        yield "".join(character for character in text if unicodedata.category(character) not in ("Cn", "Cs"))


def with_tokenizer_of(name, folder):
    """A tiny encoder that reads as a real model does, so that thousands of texts are read in no time."""
    tokenizer = unmask.load(name).tokenizer
    layer = Layer(SoftmaxAttention(1, 2), PlainFeedForward(2, "gelu"), LayerNorm(1e-6))
    embedding = replace(POST_NORM.embedding, width=2, vocabulary=tokenizer.vocabulary_size)
    embedding = replace(embedding, positions=replace(embedding.positions, rows=2048))
    spec = replace(POST_NORM, width=2, embedding=embedding, layers=(layer,), pooler=None)
    files = {file: data for file, data in tokenizer.files.items() if file != "tokenizer_config.json"}
    checkpoint = new_checkpoint(to_config(spec), files, name=folder.name)
    save(new_encoder(checkpoint, seed=0), checkpoint, folder)
    return unmask.load(folder, dtype="float32")


@pytest.mark.parametrize("name", ["default", "unmask-mini"])
def test_tokens_and_words_are_those_of_python(name, browser, tmp_path):
    model = with_tokenizer_of(name, tmp_path / "model")
    corpus = [text.text for text in shipped_corpus().texts]
    texts = [text for text in (*HARD, *random_texts(700), *corpus[:700]) if text.strip()]
    with opened(browser, write_page(model, tmp_path / "page.html")) as page:
        read = page.evaluate(TOKENS, texts)
    wrong = []
    for text, got in zip(texts, read, strict=True):
        try:
            encoding = model.tokenizer.encode(text)
        except unmask.errors.TextError:
            assert got is None, text
            continue
        wanted = plain(text_read("", Place(""), model, words(encoding)))
        wrong += [] if got == [wanted["tokens"], wanted["words"]] else [text]
    assert wrong == []


# --- refusals ----------------------------------------------------------------------------------------


def test_texts_that_cannot_be_read_are_refused_in_a_sentence(browser, tmp_path):
    model = FakeModel("live")
    with opened(browser, write_page(model, tmp_path / "page.html")) as page:
        assert refusal(page, " \n")["sentence"] == "the text has no words; give a text with at least one"
        assert refusal(page, "", "the river")["kind"] == "EmptyText"
        assert refusal(page, "the", " ")["sentence"].startswith("the pair of the text has no words")
        long = refusal(page, "the river " * 20)
        assert long["sentence"] == (
            "the text has 42 tokens, more than the 32 that the model in this page reads; shorten it"
        )
        assert (long["total_tokens"], long["max_tokens"]) == (42, 32)
        half = "() => window.unmaskLive.get('live?text=ab%EF%BF%BD').then(({ status }) => status)"
        assert page.evaluate(half) == 200  # as the page spells half of a surrogate pair
        assert computed(page, "the river")[1]["tokens"][1]["surface"] == "the"
        other = "() => window.unmaskLive.get('live?model=1&text=the').then(({ status }) => status)"
        assert page.evaluate(other) == 422


@pytest.mark.parametrize("spec", [DISENTANGLED, LINEAR, WINDOWS_GLOBALS, BLOCKS])
def test_an_encoder_that_a_page_cannot_compute_is_refused(spec):
    assert unsupported_in_page(spec) is not None


def test_a_model_is_refused_before_a_file_is_written(tmp_path):
    folder = tmp_path / "linear"
    written(LINEAR, of_pieces(), folder)
    path = tmp_path / "page.html"
    with pytest.raises(
        UnknownArchitecture, match=r"linear cannot compute in a page because linear attention"
    ):
        report("the river", output=path, model=[str(folder)], live=True)
    assert not path.exists()


def test_a_model_that_no_page_holds_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_CHARACTERS", 1000)
    with pytest.raises(InvalidRequest, match=r"a page holds 0 MB; take int8 weights, or a smaller model"):
        live_model(FakeModel("live"), "float32")
    with pytest.raises(InvalidRequest, match=r"weights is 'int4'"):
        live_model(FakeModel("live"), "int4")


def test_a_short_limit_holds_attention_of_all_heads(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 12 * 20**2 + 5)
    assert module.live_tokens(FakeModel("live").spec, 32) == 20
    assert module.live_tokens(FakeModel("live").spec, 9) == 9


# --- files -------------------------------------------------------------------------------------------


def test_a_saved_page_reads_other_texts(browser, tmp_path):
    model = FakeModel("live")
    path, plain = tmp_path / "live.html", tmp_path / "plain.html"
    folder = str(model.checkpoint.source.folder)
    report("the river bank", output=path, model=[folder], views="map", live=True, live_weights="float32")
    report("the river bank", output=plain, model=[folder], views="map")
    assert "'wasm-unsafe-eval'" in path.read_text()
    assert "unsafe" not in plain.read_text().partition("</head>")[0]
    with opened(browser, path) as page:
        page.wait_for_selector("[data-testid=page][data-phase=ready]")
        check_equal(page, model, [("another bank was muddy!", None)])


def test_a_page_can_be_saved_with_its_model():
    api = Api([FakeModel("live"), FakeModel("other", seed=1)])

    def exported(live):
        body = {"paths": ["session"], "live": live}
        return api.answer("POST", "export", body=json.dumps(body).encode())

    assert b'id="unmask-live">' in exported(1).data
    assert b"id=" in exported(None).data
    assert b'id="unmask-live">' not in exported(None).data
    for wrong in (2, "0", True):
        assert exported(wrong).status == 400
    api.close()


def test_the_default_model_fits_in_thirty_megabytes(default_model, tmp_path):
    path = tmp_path / "page.html"
    report("The river bank was muddy, so we took the money to the bank.", output=path, live=True)
    assert path.stat().st_size < 30_000_000


def test_text_of_bytes():
    """The page reads it back, as every other test shows."""
    assert as_text(b"") == "0:"
    for data in (b"\0", b"\xff" * 9, bytes(range(256)) + b"x"):
        count, _, text = as_text(data).partition(":")
        assert int(count) == len(data)
        assert "<" not in text
        groups = [text[at : at + 11] for at in range(0, len(text), 11)]
        values = [[ord(digit) - (33 if digit > "<" else 32) for digit in group] for group in groups]
        numbers = [sum(value * 94 ** (10 - place) for place, value in enumerate(group)) for group in values]
        assert b"".join(number.to_bytes(9, "big") for number in numbers)[: len(data)] == data


def test_the_module_is_of_the_present_sources():
    script = REPOSITORY / "scripts" / "live.py"
    if not script.is_file():
        pytest.skip("the sources of the page are not in this copy")
    built = json.loads((LIVE / "manifest.json").read_text())
    assert built == runpy.run_path(str(script))["sources"](), (
        "run python scripts/live.py and commit the result"
    )


IMPORTS = """(text) => {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt());
    return WebAssembly.Module.imports(new WebAssembly.Module(bytes));
}"""


def test_the_module_imports_nothing(browser):
    page = browser.new_page()
    code = base64.b64encode((LIVE / "live.wasm").read_bytes()).decode()
    assert page.evaluate(IMPORTS, code) == []
    page.close()


def test_terms_by_distance_are_those_of_the_native_engine():
    spec = SPECS["relative"]
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    tables = PositionTables(table)
    number = tables.distances_of(spec.layers[0].mixer)
    terms = tables.terms(number, 5)
    assert terms.shape == (3, 9)
    assert terms[0, 4] == table[0, 0]
