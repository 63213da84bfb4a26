"""docs/bulk.md: its commands are understood, its Python runs, and other engines take the callable."""

import shlex
import sys

import numpy as np
import pyarrow
import pytest

import unmask
from tests.bulk.conftest import blocks
from tests.support.command import run_here
from unmask.bulk import BatchClassifier, BatchEmbedder, BatchTagger
from unmask.bulk import run as bulk_run

TEXTS = ["Ada Lovelace sat on a river bank", "a savings bank", "the muddy road"]


def test_commands_are_understood(monkeypatch):
    """Up to the work itself, which is not begun."""
    asked = []

    def run_shards(inputs, output, task, **options):
        asked.append((type(task), inputs[0], output, options["engine"], options["workers"]))
        raise ZeroDivisionError

    monkeypatch.setattr(bulk_run, "run_shards", run_shards)
    for line in "".join(blocks("sh")).splitlines():
        if line.startswith("unmask "):
            with pytest.raises(ZeroDivisionError):
                run_here(*shlex.split(line)[1:])
    assert asked == [
        (BatchEmbedder, "passages.parquet", "vectors", "processes", 4),
        (BatchClassifier, "reviews.parquet", "labeled", "processes", 4),
        (BatchTagger, "s3://bucket/news/*.parquet", "s3://bucket/entities", "processes", 4),
        (BatchEmbedder, "passages.parquet", "vectors", "ray", 64),
    ]


def test_its_python_runs(capsys):
    pytest.importorskip("pandas", reason="the example has a data frame of pandas")
    (code,) = [block for block in blocks("python") if "pandas" in block]
    exec(code, {})
    assert capsys.readouterr().out == "384\n"


@pytest.fixture(scope="module")
def wanted_SE():
    return unmask.load("default").embed(TEXTS)


@pytest.fixture(scope="module")
def entities():
    """The texts of the entities that one process finds."""
    found = unmask.load("default", adapter="names").tag(TEXTS)
    return [[entity.text for entity in one.entities] for one in found]


@pytest.mark.slow
def test_dask_takes_it(wanted_SE):
    frames = pytest.importorskip("dask.dataframe", reason="Dask is not installed")
    pandas = pytest.importorskip("pandas")
    frame = frames.from_pandas(pandas.DataFrame({"text": TEXTS}), npartitions=2)
    meta = {**frame.dtypes, "embedding": object}
    made = frame.map_partitions(BatchEmbedder(), meta=meta).compute(scheduler="synchronous")
    np.testing.assert_allclose(np.stack(list(made["embedding"])), wanted_SE, atol=1e-6)


@pytest.mark.slow
def test_daft_takes_it(wanted_SE):
    daft = pytest.importorskip("daft", reason="Daft is not installed")
    embedder = BatchEmbedder()

    @daft.func.batch(return_dtype=daft.DataType.list(daft.DataType.float32()))
    def embedded(texts):
        return list(embedder({"text": texts.to_pylist()})["embedding"])

    frame = daft.from_pydict({"text": TEXTS})
    made = frame.with_column("embedding", embedded(frame["text"])).to_pydict()["embedding"]
    np.testing.assert_allclose(np.array(made), wanted_SE, atol=1e-6)


@pytest.fixture
def local_ray(monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install unmask[ray]")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray warns about itself
def test_ray_data_takes_it(wanted_SE, entities, local_ray):
    dataset = local_ray.data.from_arrow(pyarrow.table({"text": TEXTS}))
    rows = dataset.map_batches(BatchEmbedder(threads=1), batch_size=2).take_all()
    np.testing.assert_allclose(np.stack([row["embedding"] for row in rows]), wanted_SE, atol=1e-6)
    tagger = BatchTagger(load={"adapter": "names"}, threads=1)
    for kind in ("pyarrow", "numpy", "pandas"):
        rows = dataset.map_batches(tagger, batch_size=2, batch_format=kind).take_all()
        assert [[entity["text"] for entity in row["entities"]] for row in rows] == entities


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Spark warns about itself
def test_spark_takes_it(wanted_SE, entities, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed: pip install pyspark, and Java")
    pytest.importorskip("pandas", reason="mapInPandas needs pandas")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    spark = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        frame = spark.createDataFrame([(text,) for text in TEXTS], "text string").repartition(2)
        embedder = BatchEmbedder(threads=1)
        made = frame.mapInPandas(embedder.iterate, "text string, embedding array<float>").collect()
        rows = {row["text"]: row["embedding"] for row in made}
        np.testing.assert_allclose([rows[text] for text in TEXTS], wanted_SE, atol=1e-6)
        tagger = BatchTagger(load={"adapter": "names"}, threads=1)
        schema = (
            "text string, tokens_read bigint, windows bigint, truncated_tokens bigint, entities array<struct<"
            "label: string, start: bigint, end: bigint, text: string, score: double>>, "
            "has_entities boolean, scheme string"
        )
        made = frame.mapInPandas(tagger.iterate, schema).collect()
        found = {row["text"]: [one["text"] for one in row["entities"]] for row in made}
        assert [found[text] for text in TEXTS] == entities
    finally:
        spark.stop()
