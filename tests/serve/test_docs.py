"""docs/serve.md: its commands start what it says, its tables are those of the program."""

import re
import shlex

import pytest

from tests.support.command import run_here
from tests.support.places import REPOSITORY
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask import serve as package
from unmask.cli.serve import LIMITS
from unmask.serve import Limits

TEXT, PRODUCTION = (
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("serve.md", "production.md")
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """A server of the models that the requests of the page name."""
    import unmask
    from unmask.serve import make_app

    place = tmp_path_factory.mktemp("docs")
    write_checkpoint(place / "default")
    labeled = tiny_bert("BertForSequenceClassification", num_labels=2)
    write_checkpoint(place / "mood", labeled, sentence=False)
    made = make_app({name: unmask.load(place / name) for name in ("default", "mood")})
    yield made
    made.state.service.close()


def blocks(language, text=TEXT):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "line",
    [
        one
        for text in (TEXT, PRODUCTION)
        for block in blocks("sh", text)
        for one in block.splitlines()
        if one.startswith("unmask serve")
    ],
)
def test_commands_are_understood(line, monkeypatch, tmp_path):
    """Up to the server, which is not started."""
    (tmp_path / "keys.txt").write_text("a-key-of-sixteen-characters\n")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(package, "serve", lambda models, **options: started.append((models, options)))
    ran = run_here(*shlex.split(line)[1:])
    assert (ran.code, ran.err) == (0, "")
    ((models, options),) = started
    named = ["my-encoder"] if "my-encoder" in line else ["default"]
    adapters = re.findall(r"--adapter (\w+)=", line)
    assert list(models) == (["search", "ranker", "films"] if "search=" in line else [*named, *adapters])
    assert list(options["indexes"]) == (["notes"] if "--index" in line else [])
    assert options["limits"] == Limits(body_bytes=4_000_000)
    assert options["workers"] == (2 if "--workers 2" in line else 1)
    assert len(options["keys"]) == ("keys.txt" in line)


def test_requests_are_answered(client):
    """What the page sends with curl."""
    sent = re.findall(r"curl http://127.0.0.1:8080(/\S+) (?:[^`]*?)-d '(.*)'", TEXT)
    assert len(sent) == TEXT.count("curl ")
    for path, body in sent:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text


def test_every_route_is_listed(app):
    table = TEXT.partition("## Routes")[2].partition("\n## ")[0]
    named = {
        path
        for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
        for path in re.findall(r"/[\w/.]+", row)
    }
    served = {route.path for route in app.routes} - {"/"}
    assert named == served


def test_limits_are_those_of_the_command():
    table = TEXT.partition("## Keys and limits")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `--([\w-]+)` \| .*? \| (\d+) \|", table, re.MULTILINE)
    assert len(rows) == 6
    defaults = {"body_megabytes": LIMITS.body_megabytes} | vars(LIMITS.checked("cpu"))
    for name, default in rows:
        assert defaults[name.replace("-", "_")] == float(default)
    assert LIMITS.checked("cuda").tokens_per_pass == 8192


def test_alerts_name_metrics(client):
    """Every metric of the page on production is one that the server has."""
    served = client.get("/metrics").text
    named = set(re.findall(r"unmask_[a-z_]+", PRODUCTION))
    assert len(named) > 5
    assert {
        one for one in named if f"\n{one.removesuffix('_bucket')} " not in served.replace("# TYPE ", "")
    } == set()


def test_python(default_model, monkeypatch):
    import unmask

    monkeypatch.setattr(unmask, "load", lambda name: default_model)
    names = {}
    for block in blocks("python"):
        exec(compile(block, "serve.md", "exec"), names)
    assert names["app"].state.service.models.all[0].tasks == ("embed", "embed_all", "attention")
    names["app"].state.service.close()
