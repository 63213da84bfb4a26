"""Every task of inference on the models of a folder, run with or without torch.

``python -m tests.support.every_task FOLDER DTYPE`` hides torch and prints the results as JSON.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np

TEXTS = ["the river bank was muddy.", "a text", "another river, a bank!"]
QUESTION = "was the river a bank"
MASKED = "the river [MASK] was [MASK]."


def of_models(folder, **options):
    """The numbers that each task gives, by its name, as lists of lists."""
    import unmask

    def load(name, **more):
        source = name if more else Path(folder) / name
        return unmask.load(source, **options, **more)

    found = {}
    dense = load("dense")
    found["embed"] = dense.embed(TEXTS)
    found["similarity"] = dense.similarity(TEXTS, TEXTS[:2])
    found["multi_vectors"] = np.concatenate(
        [text.vectors_NE for text in load("colbert").multi_vectors(TEXTS)]
    )
    for name in ("splade", "inference-free"):
        model = load(name)
        for kind in ("query", "document"):
            weights = np.zeros((len(TEXTS), model.spec.embedding.vocabulary), np.float32)
            for row, text in zip(weights, model.sparse_vectors(TEXTS, kind), strict=True):
                row[text.ids] = text.weights
            found[f"{name} {kind}"] = weights
    labels = load("labels")
    found["classify"] = [list(text.scores.values()) for text in labels.classify(TEXTS)]
    found["zero_shot"] = labels.logits(TEXTS).values
    tags = load("tags")
    found["tag"] = [[word.score for word in text.words] for text in tags.tag(TEXTS[:1])]
    found["tokens"] = tags.logits(TEXTS[:1]).values
    found["answer"] = [[a.score for a in load("answers").answer(QUESTION, TEXTS[0]).answers]]
    found["choose"] = [load("choices").choose(QUESTION, TEXTS).scores]
    found["follows"] = [[pair.probability for pair in load("follows").follows(TEXTS, TEXTS)]]
    found["score_pairs"] = load("cross").score_pairs(QUESTION, TEXTS)[None]
    words = load("words")
    found["fill"] = [[p.probability for mask in words.fill(MASKED) for p in mask.predictions]]
    found["predict_tokens"] = [[token.loss for token in words.predict_tokens(TEXTS[0]).tokens]]
    found["adapter"] = [list(load("default", adapter="sentiment").classify("I love it").scores.values())]
    wide = "float32" if options.get("dtype") == "int8" else options.get("dtype", "float32")
    several = unmask.load_adapters("default", ["sentiment", "names"], dtype=wide)
    loved, named = several.predict(["I love it", TEXTS[0]], ["sentiment", "names"])
    found["adapters"] = [list(loved.scores.values())]
    found["words of an adapter"] = [[word.score for word in named.words]]
    found["one of several"] = [list(several.model("sentiment").classify("I love it").scores.values())]
    found["disentangled"] = load("variant/disentangled", compat="published").embed(TEXTS, pooling="mean")
    return {name: np.asarray(rows, np.float64).tolist() for name, rows in found.items()}


def by_commands(folder, place):
    """What each command printed."""
    from unmask.cli.main import main

    place, folder = Path(place), Path(folder)
    (place / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (place / "documents").mkdir()
    (place / "documents" / "a.txt").write_text(" ".join(TEXTS), encoding="utf-8")
    lines, index = str(place / "lines.txt"), str(place / "index")
    many = str(place / "many")
    commands = {
        "embed": ["embed", lines, "-m", folder / "dense", "-o", place / "vectors.npy"],
        "similarity": ["similarity", TEXTS[0], TEXTS[1], "-m", folder / "dense"],
        "classify": ["classify", TEXTS[0], "-m", folder / "labels"],
        "tag": ["tag", TEXTS[0], "-m", folder / "tags"],
        "answer": ["answer", TEXTS[0], "--question", QUESTION, "-m", folder / "answers"],
        "choose": ["choose", QUESTION, "--choice", TEXTS[0], "--choice", TEXTS[1], "-m", folder / "choices"],
        "follows": ["follows", TEXTS[0], TEXTS[1], "-m", folder / "follows"],
        "fill": ["fill", MASKED, "-m", folder / "words"],
        "compare": ["compare", TEXTS[0], "-m", folder / "words"],
        "index": ["index", place / "documents", "-o", index, "-m", folder / "dense"],
        "search": ["search", index, "muddy"],
        "index many": ["index", place / "documents", "-o", many, "-m", folder / "colbert"],
        "search many": ["search", many, "muddy", "--reranker", folder / "cross"],
        "inspect": ["inspect", folder / "dense"],
        "--help": ["--help"],
    }
    printed = {}
    for name, arguments in commands.items():
        sys.argv = ["unmask", *map(str, arguments)]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            try:
                main()
            except SystemExit as stop:
                printed[name] = f"exit {stop.code}: {out.getvalue()}" if stop.code else out.getvalue()
            else:
                printed[name] = out.getvalue()
    return printed


def by_requests(folder):
    """The status and the answer of one request to each route."""
    from starlette.testclient import TestClient

    import unmask
    from unmask.serve import make_app

    names = ("dense", "splade", "labels", "tags", "answers", "choices", "follows", "cross", "words")
    app = make_app({name: unmask.load(Path(folder) / name) for name in names})
    requests = {
        "/v1/embeddings": {"model": "dense", "input": TEXTS},
        "/embed": {"model": "dense", "inputs": TEXTS},
        "/embed_all": {"model": "dense", "inputs": TEXTS[0]},
        "/embed_sparse": {"model": "splade", "inputs": TEXTS[0]},
        "/similarity": {"model": "dense", "inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}},
        "/predict": {"model": "labels", "inputs": TEXTS[0]},
        "/rerank": {"model": "cross", "query": QUESTION, "texts": TEXTS},
        "/v1/classify": {"model": "labels", "texts": TEXTS[:1]},
        "/v1/entities": {"model": "tags", "texts": TEXTS[:1]},
        "/v1/redact": {"texts": TEXTS[:1]},
        "/v1/answers": {"model": "answers", "question": QUESTION, "contexts": TEXTS[:1]},
        "/v1/choices": {"model": "choices", "question": QUESTION, "choices": TEXTS},
        "/v1/follows": {"model": "follows", "pairs": TEXTS[:2]},
        "/v1/masked_words": {"model": "words", "texts": [MASKED]},
        "/v1/attention": {"model": "dense", "texts": TEXTS[:1]},
    }
    answers = {}
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        for path, body in requests.items():
            answer = client.post(path, json=body)
            answers[path] = answer.status_code, answer.text[:300]
    app.state.service.close()
    return answers


def main():
    """Hide torch, and print the results."""
    sys.modules["torch"] = None
    folder, dtype, place = sys.argv[1:]
    found = {"models": of_models(folder, dtype=dtype)}
    if place:
        found["requests"] = by_requests(folder)
        found["commands"] = by_commands(folder, place)
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    main()
