"""No view violates a rule of axe-core (Deque Systems, MPL-2.0), in both tones, on a desk and on a phone.

axe-core is a development dependency of ``web/``; without ``web/node_modules`` these tests are skipped.
"""

from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from conftest import DRAWN, opened, running, settle
from fake_model import NAME, FakeModel

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed; run npm ci in web/"),
]

TEXT = "the river bank was muddy and another text of the bank ."
OTHER = TEXT.replace("river", "text")
LONG = " ".join([TEXT] * 4)
STATES = {
    "blank": {"view": "map", "text": ""},
    "overview": {},
    "tokens": {},
    "heads": {},
    "heads table": {"view": "heads", "heads.as": "table"},
    "head": {},
    "map": {},
    "a word replaced": {"view": "map", "against": OTHER},
    "flow": {},
    "flow of all layers": {"view": "flow", "flow.as": "all"},
    "flow through layers": {"view": "flow", "flow.as": "through"},
    "sinks": {},
    "paths": {},
    "words": {},
    "two models": {"view": "compare", "beside": f"{NAME} (2)"},
    "two texts": {"view": "compare", "against": OTHER},
    "geometry": {"text": LONG},
    "roofline": {},
    "tour": {},
    "search": {"search.text": "money from the river bank"},
}
DIALOGS = {"help": "?", "save": "e", "palette": "/"}
SCREENS = {"desk": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}

RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.flatMap(rule =>
    rule.nodes.map(node => `${rule.id}: ${node.target.join(' ')} ${node.html.slice(0, 120)}`))"""


def violations(page):
    """What axe-core finds, one sentence each."""
    if not page.evaluate("() => 'axe' in window"):
        # Through the debugger, which the page's content security policy does not bind.
        page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(RUN)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Two small models, and an index of BM25."""
    from unmask.search.index import Index

    index = Index.create(tmp_path_factory.mktemp("axe") / "my-index", [])
    index.add(
        [
            {
                "id": "bank.md",
                "text": "# The bank\n\nThe river bank was muddy, so he took his money to town.",
            },
            {"id": "boat.md", "text": "He bought a boat with the money and rowed down the river."},
        ]
    )
    with running([FakeModel(max_tokens=64), FakeModel(max_tokens=64)], index=index.path) as server:
        yield server


@pytest.mark.parametrize(
    ("tone", "screen"),
    [
        ("dark", "phone"),
        *(
            pytest.param(tone, screen, marks=pytest.mark.slow)
            for tone, screen in (("light", "desk"), ("dark", "desk"), ("light", "phone"))
        ),
    ],
)
def test_no_view_violates_a_rule(browser, house, tone, screen):
    found = []
    with opened(browser, color_scheme=tone, reduced_motion="reduce") as page:
        page.set_viewport_size(SCREENS[screen])
        page.goto(house.url)
        for name, state in STATES.items():
            fields = {"v": "3", "view": name, "text": TEXT, "query": "3"} | state
            page.goto(f"{house.url}#{urlencode(fields, quote_via=quote)}")
            settle(page, fields["view"])
            found += [f"{name}: {one}" for one in violations(page)]
        page.goto(f"{house.url}#v=3&view=map&text={quote(TEXT)}")
        settle(page, "map")
        page.evaluate("document.activeElement?.blur()")  # a box or a list takes keys itself
        for name, key in DIALOGS.items():
            page.keyboard.press(key)
            page.get_by_role("dialog").wait_for()
            page.evaluate(DRAWN)
            found += [f"{name}: {one}" for one in violations(page)]
            page.keyboard.press("Escape")
            # A key that comes between the closing and the page's hearing of it is lost.
            page.locator("dialog").wait_for(state="detached")
    assert found == []


def test_what_violates_a_rule_is_found(page):
    page.set_content(
        '<html lang="en"><title>t</title><main><h1>a page</h1><button></button>'
        '<p style="color: #999; background: #fff">faint</p></main>'
    )
    assert {one.split(":")[0] for one in violations(page)} == {"button-name", "color-contrast"}
