"""Files that are dropped on the page or chosen: their text becomes the page's text."""

import pytest
from conftest import TOKEN, opened
from fake_model import FakeModel
from looking import SHORT, greeted, look, shown

from tests.support.small_pdf import small_pdf
from unmask.explorer import make_app
from unmask.explorer.page import PDF

DROP = """([files, stay]) => {
    const data = new DataTransfer();
    for (const [name, bytes] of files) data.items.add(new File([new Uint8Array(bytes)], name));
    const event = type => document.querySelector('main').dispatchEvent(
        new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
    const taken = !event('dragover');
    if (!stay) event('drop');
    return taken;
}"""


def drop(page, *files, stay=False):
    return page.evaluate(DROP, [[[name, list(data)] for name, data in files], stay])


def test_a_dropped_text_and_a_chosen_pdf_are_read(page, fake_explorer):
    pytest.importorskip("pypdfium2", reason="the search extra is not installed")
    page.goto(f"{fake_explorer.url}#v=3&view=map")
    greeted(page)
    assert drop(page, ("a.txt", b""), stay=True), "the browser would open it in place of this page"
    assert "a .txt, .md or .pdf file" in page.get_by_test_id("drop").inner_text()
    drop(page, ("a.txt", SHORT.encode()))
    shown(page, 0, 0)
    page.get_by_test_id("drop").wait_for(state="detached")
    page.wait_for_function(f"() => document.title.includes({SHORT!r})")
    page.get_by_test_id("edit").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_test_id("open-file").click()
    given = {"name": "b.pdf", "mimeType": "", "buffer": small_pdf([None, "the muddy bank was money"])}
    chooser.value.set_files(given)
    page.wait_for_function("() => document.title.includes('the muddy bank was money')")
    assert page.get_by_test_id("file-note").inner_text().startswith("1 page holds a picture and no text")
    page.get_by_test_id("text").wait_for(state="detached")  # the box is closed, as after Read
    page.keyboard.press("Tab")
    page.keyboard.press("]")
    shown(page, 1, 0)


def test_what_cannot_be_opened_is_said_and_the_text_stays(browser, fake_explorer):
    pytest.importorskip("pypdfium2", reason="the search extra is not installed")
    with opened(browser, expected_errors=["422"]) as page:
        look(page, fake_explorer, "map")
        shown(page, 0, 0)
        said = page.get_by_test_id("problem")
        for files, words in (
            ([("photo.png", b"x")], "“photo.png” cannot be opened"),
            ([("a.txt", b"x"), ("b.txt", b"x")], "2 files were given"),
            ([("old.md", b"caf\xe9")], "is not UTF-8 text"),
            ([("scan.pdf", small_pdf([None]))], "It has no text; run OCR first".lower()),
        ):
            drop(page, *files)
            said.get_by_text(words).wait_for()
            page.wait_for_selector('[data-testid="page"][data-busy="false"]')
        shown(page, 0, 0)
        page.get_by_text("keep the current text").wait_for()


def test_only_a_pdf_may_be_large_and_only_there(monkeypatch):
    testclient = pytest.importorskip("starlette.testclient", reason="the explorer extra is not installed")
    app = make_app(FakeModel(), TOKEN, port=8123)
    monkeypatch.setattr("unmask.explorer.server.application.MAX_PDF_BYTES", 3 << 20)
    headers = {"X-Unmask-Token": TOKEN}
    with testclient.TestClient(app, base_url="http://127.0.0.1:8123", headers=headers) as client:

        def post(path, size, kind):
            return client.post(path, content=b"a" * size, headers={"Content-Type": kind}).status_code

        assert post("/api/pdf", 2 << 20, PDF) == 422, "read, and no PDF"
        assert post("/api/pdf", 4 << 20, PDF) == 413
        assert post("/api/pdf", 10, "application/json") == 415
        assert post("/api/pdf", 10, "text/plain") == 415
        assert post("/api/texts", 10, PDF) == 415
        assert post("/api/texts/none/stop", 2 << 20, "application/json") == 413, (
            "before any route looks at it"
        )
        assert (
            client.post("/api/pdf", headers={"X-Unmask-Token": "wrong", "Content-Type": PDF}).status_code
            == 401
        )
    app.state.opening.close()
