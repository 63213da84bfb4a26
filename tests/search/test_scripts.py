"""BM25 in all scripts: what finds what, where it stands, and what an older index does."""

import json
import random
import sys
import tracemalloc
import unicodedata

import pytest

from unmask.search.analysis import Analyzer
from unmask.search.documents.read import find_files
from unmask.search.index import Index
from unmask.search.settings import FORMAT, IndexSettings

POEM = ["床前明月光", "疑是地上霜", "举头望明月", "低头思故乡"]

FINDS = [
    ("京都に行きました。東京タワー", "タワー"),
    ("京都に行きました。東京タワー", "行き"),
    ("ｶﾞｽを止める", "ガス"),
    ("か\u3099っこう", "がっこう"),
    ("학교에서 공부한다", "학교"),
    (unicodedata.normalize("NFD", "한국어"), "한국"),
    ("ฉันไปโรงเรียน", "โรงเรียน"),
    ("ดื่มน้ำ", "น้ำ"),
    ("ຂ້ອຍໄປໂຮງຮຽນ", "ໂຮງຮຽນ"),
    ("ខ្ញុំទៅ\u200bសាលារៀន", "សាលា"),
    ("ကျောင်းသွားသည်", "ကျောင်း"),
    ("भारत की राजधानी दिल्ली", "दिल्ली"),
    ("तमिल தமிழ் மொழி", "தமிழ்"),
    ("مُحَمَّدٌ رَسُول", "محمد"),
    ("محـــمد", "محمد"),
    ("می\u200cخواهم", "میخواهم"),
    ("می\u200cخواهم", "خواهم"),
    ("كتاب قديم", "کتاب"),
    ("أحمد", "احمد"),
    ("שָׁלוֹם", "שלום"),
    ("cafe\u0301", "CAFÉ"),
    ("Straße", "STRASSE"),
    ("İstanbul", "istanbul"),
    ("ΑΘΗΝΑΣ", "Αθήνας"),
    ("Ёлка", "елка"),
    ("мова п’ять", "пʼять"),
    ("the ＡＰＩ key", "api"),
    ("سنة ٢٠٢٤", "2024"),
    ("साल २०२४", "2024"),
    ("pay\u200bpal", "paypal"),
    ("one\u200btwo", "two"),
    ("so\u00adft\u2060ware", "software"),
    ("\ufeffword", "word"),
    ("a 👍🏽 b", "👍"),
    ("a ❤\ufe0f b", "❤"),
    ("in 🇩🇪", "🇩🇪"),
    ("Word™", "word"),
    ("5㎏", "kg"),
    ("ﬁsh", "fish"),
    ("ÜberGroß", "groß"),
]


@pytest.mark.parametrize(("text", "query"), FINDS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_word_is_found_in_every_spelling(text, query, form):
    analyzer = Analyzer()
    terms = analyzer.counted(unicodedata.normalize(form, text))
    asked = analyzer.asked(unicodedata.normalize(form, query))
    assert asked
    assert set(asked) <= set(terms)


@pytest.mark.parametrize(
    ("text", "query"),
    [("दिल", "दिल्ली"), ("मन", "मैन"), ("cafe", "café"), ("東西", "東京"), ("🇩🇪", "🇫🇷"), ("a🇫🇷", "a🇩🇪🇷🇺")],
)
def test_other_words_are_not_found(text, query):
    analyzer = Analyzer()
    assert not set(analyzer.counted(text)) & (set(analyzer.asked(query)) - {"a"})


def test_terms_stand_in_the_original_text():
    spots = {
        "x ｶﾞｽ y": ("ガス", "ｶﾞｽ"), "é cafe\u0301! z": ("café", "cafe\u0301"), "«مُحَمَّد» a": ("محمد", "مُحَمَّد"),
        "a so\u00adft b": ("soft", "so\u00adft"), "die STRAßE": ("strasse", "STRAßE"), "ﬁsh": ("fish", "ﬁsh"),
    }  # fmt: skip
    for text, (term, stands) in spots.items():
        places = {found.term: text[found.start : found.end] for found in Analyzer("none").terms(text)}
        assert places[term] == stands


def test_any_text_has_places_within_it_and_the_same_terms_in_both_normal_forms():
    draw = random.Random(0)
    some = [chr(code) for code in range(sys.maxunicode) if chr(code).isprintable() and code % 7 == 0]
    some += list("aA1_ '\u200b\u200c\u200d\u00ad\ufeff한국中文กำเ") * 200
    analyzer = Analyzer("none")
    for _ in range(150):
        text = "".join(draw.choices(some, k=30))
        assert [one.term for one in analyzer.terms(text)] == analyzer.counted(text)
        assert all(0 <= one.start < one.end <= len(text) and one.term for one in analyzer.terms(text))
        composed, apart = (analyzer.counted(unicodedata.normalize(form, text)) for form in ("NFC", "NFD"))
        assert composed == apart


def test_ascii_has_the_terms_of_older_indexes():
    draw = random.Random(1)
    for _ in range(300):
        text = "".join(draw.choices("aAbBzZ09_ .-'\n", k=60))
        assert list(Analyzer().terms(text)) == list(Analyzer(rules="words").terms(text))


def test_an_index_finds_and_marks_one_character_and_several(tmp_path):
    index = Index.create(tmp_path / "index", [])
    index.add([{"id": str(at), "text": line} for at, line in enumerate(POEM)])
    for query, ids in [("明月", {"0", "2"}), ("霜", {"1"}), ("思故乡", {"3"}), ("月", {"0", "2"})]:
        hits = index.search(query, why=True)
        assert {hit.document for hit in hits} == ids
        for hit in hits:
            marked = "".join(hit.text[start:end] for start, end in index.matches(query, hit))
            assert set(marked) == set(query)
            (why,) = hit.why
            assert why.score == pytest.approx(hit.score)


def test_an_older_index_keeps_its_terms(tmp_path):
    index = Index.create(tmp_path / "index", [])
    stored = index.settings.stored()
    assert (stored["format"], stored["analyzer"]["rules"]) == (FORMAT, "unicode")
    stored["format"] = 1
    del stored["analyzer"]["rules"]
    older = IndexSettings.of_stored(json.loads(json.dumps(stored)), "index")
    assert older.analyzer.rules == "words"
    assert older.analyzer.counted("床前明月光 naïve") == ["床前明月光", "naïv"]
    assert older.analyzer.asked("明月") == ["明月"]


def test_patterns_of_files_do_not_ask_how_a_letter_is_composed(tmp_path):
    (tmp_path / unicodedata.normalize("NFD", "résumé.txt")).write_text("a")
    for form in ("NFC", "NFD"):
        pattern = unicodedata.normalize(form, "résumé*")
        assert len(list(find_files([tmp_path], [pattern]))) == 1
        assert not list(find_files([tmp_path], exclude=[pattern]))


def test_searches_for_ever_new_words_keep_nothing(tmp_path):
    index = Index.create(tmp_path / "index", [])
    index.add([{"id": "a", "text": "a river"}])
    draw = random.Random(2)

    def search(count):
        for _ in range(count):
            index.search("".join(draw.choices("abcdefghé", k=20_000)))

    search(3)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    search(60)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200_000, "one query has 20,000 letters"


def test_remembered_words_are_bounded(monkeypatch):
    monkeypatch.setattr("unmask.search.analysis.REMEMBERED", 100)
    analyzer = Analyzer()
    analyzer.counted(" ".join(f"w{at} é{at}" for at in range(300)))
    before = analyzer._short.cache_info()
    assert before.currsize == 100
    analyzer.counted("x" * 100_000)
    assert analyzer._short.cache_info() == before
