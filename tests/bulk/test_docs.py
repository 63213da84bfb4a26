"""docs/bulk.md: its commands are understood, its Python runs, and other engines take the callable."""

import re
import shlex

import numpy as np
import pytest

import unmask
from tests.support.command import run_here
from tests.support.places import REPOSITORY
from unmask.bulk import BatchEmbedder
from unmask.cli import bulk

PAGE = (REPOSITORY / "docs" / "bulk.md").read_text(encoding="utf-8")
TEXTS = ["a river bank", "a savings bank", "the muddy road"]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "line", [one for block in blocks("sh") for one in block.splitlines() if one.startswith("unmask ")]
)
def test_commands_are_understood(line, monkeypatch):
    """Up to the work itself, which is not begun."""
    asked = []

    def run_shards(inputs, output, embedder, **options):
        asked.append((inputs, output, options["engine"], options["workers"]))
        raise ZeroDivisionError

    monkeypatch.setattr(bulk, "run_shards", run_shards)
    with pytest.raises(ZeroDivisionError):
        run_here(*shlex.split(line)[1:])
    ((inputs, output, engine, workers),) = asked
    assert output == "vectors"
    assert inputs[0] == "passages.parquet"
    assert (engine, workers) in {("processes", 4), ("ray", 64)}


def test_its_python_runs(capsys):
    pytest.importorskip("pandas", reason="the example has a data frame of pandas")
    (code,) = blocks("python")
    exec(code, {})
    assert capsys.readouterr().out == "384\n"


@pytest.fixture(scope="module")
def wanted_SE():
    return unmask.load("default").embed(TEXTS)


def test_dask_takes_it(wanted_SE):
    frames = pytest.importorskip("dask.dataframe", reason="Dask is not installed")
    pandas = pytest.importorskip("pandas")
    frame = frames.from_pandas(pandas.DataFrame({"text": TEXTS}), npartitions=2)
    meta = {**frame.dtypes, "embedding": object}
    made = frame.map_partitions(BatchEmbedder(), meta=meta).compute(scheduler="synchronous")
    np.testing.assert_allclose(np.stack(list(made["embedding"])), wanted_SE, atol=1e-6)


def test_daft_takes_it(wanted_SE):
    daft = pytest.importorskip("daft", reason="Daft is not installed")
    embedder = BatchEmbedder()

    @daft.func.batch(return_dtype=daft.DataType.list(daft.DataType.float32()))
    def embedded(texts):
        return list(embedder({"text": texts.to_pylist()})["embedding"])

    frame = daft.from_pydict({"text": TEXTS})
    made = frame.with_column("embedding", embedded(frame["text"])).to_pydict()["embedding"]
    np.testing.assert_allclose(np.array(made), wanted_SE, atol=1e-6)
