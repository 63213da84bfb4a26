"""``unmask convert``, ``export`` and ``distill-static``: a checkpoint in other files, or made smaller."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import (
    AdapterOption,
    CompatOption,
    Dtype,
    IgnoreOption,
    JsonOption,
    RevisionOption,
    ThreadsOption,
    listed,
    set_threads,
)
from unmask.cli.output import plain, print_json, progress
from unmask.engines.export import OutputName
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.weights import Checkpoint


def convert(
    source: Annotated[
        str, Parameter(help="a checkpoint folder (its weights may be pickled), a hub id, or default")
    ],
    out: Annotated[Path, Parameter(help="the folder to write, which must not exist")],
    *,
    revision: RevisionOption = None,
    dtype: Annotated[
        Dtype | None, Parameter(help="dtype to write; default: the dtype of the word embedding")
    ] = None,
    shard_megabytes: Annotated[
        int | None,
        Parameter(
            help="maximum size of a weights file in megabytes (10^6 bytes); a larger tensor gets its own file"
        ),
    ] = None,
    ignore_tensor: IgnoreOption = None,
    task: Annotated[
        str | None,
        Parameter(help="of weights for several tasks (jina-embeddings-v3), the one to add and keep"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Copy a checkpoint as safetensors, in another dtype, in shards, or with the weights of one task.

    Pickled weights are copied as they are, without running any code in the pickle.
    """
    from unmask.weights.heads.embedding_head import pickled_token_layers
    from unmask.weights.tensors import only_pickled

    if shard_megabytes is not None and shard_megabytes < 1:
        raise InvalidRequest(f"--shard-megabytes is {shard_megabytes}; it must be at least 1")

    if only_pickled(Path(source)) or pickled_token_layers(Path(source)):
        from unmask.weights.write.convert import convert_pickled

        if dtype is not None or shard_megabytes is not None or ignore_tensor or task is not None:
            raise InvalidRequest(
                f"{source} holds pickled weights, which are copied as they are; "
                "convert the copy again for another dtype or shards, for a task, or without a tensor"
            )
        convert_pickled(Path(source), out)
    else:
        from unmask.weights import find, read_checkpoint

        checkpoint = read_checkpoint(find(source, revision), ignore_tensors=ignore_tensor or ())
        if task is not None:
            checkpoint = checkpoint.of_task(task)
        _rewrite(checkpoint, dtype, shard_megabytes, out)
    if json:
        print_json({"folder": str(out)})
    else:
        print(f"{out} is ready; see: unmask inspect {out}")


def _rewrite(checkpoint: "Checkpoint", dtype: Dtype | None, shard_megabytes: int | None, out: Path) -> None:
    from unmask.weights.read.checkpoint_tensors import stored_dtype

    if not checkpoint.spec.layers:
        from unmask.weights.write.static import save_static

        save_static(checkpoint, out, dtype or stored_dtype(checkpoint))
        return
    from unmask.weights.build import build
    from unmask.weights.write.save import save

    encoder = build(checkpoint, dtype=dtype or stored_dtype(checkpoint))
    shard_bytes = None if shard_megabytes is None else shard_megabytes * 1_000_000
    save(encoder, checkpoint, out, shard_bytes=shard_bytes)


def distill_static(
    *,
    model: Annotated[
        str, Parameter(name=["--model", "-m"], help="the teacher: a checkpoint folder, a hub id, or default")
    ] = "default",
    out: Annotated[
        Path, Parameter(name=["--out", "-o"], help="the folder to write, which must not exist, or be empty")
    ],
    dimensions: Annotated[int, Parameter(help="the width of the vectors")] = 256,
    texts: Annotated[
        list[Path] | None,
        listed("files of texts on whose vectors the table is trained: .txt lines, or .jsonl with a text"),
    ] = None,
    smoothing: Annotated[
        float, Parameter(help="a of the weights a / (a + share of the token among all)")
    ] = 1e-5,
    epochs: Annotated[int, Parameter(help="how often the texts are read in training")] = 5,
    seed: Annotated[int, Parameter(help="determines the order of the texts in training")] = 0,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Make a static model: a table of word vectors that embeds texts far faster than the encoder.

    The folder is read by unmask, model2vec and sentence-transformers. With texts the table is trained on the
    encoder's vectors of them, which takes torch.
    """
    from unmask.interpret.corpus.texts import read_corpus
    from unmask.models.distill_static import distill_static as distill

    set_threads(threads)
    read = [text.text for path in texts for text in read_corpus(path).texts] if texts else None
    with progress("tokens and texts encoded", 0) as report:
        result = distill(
            model,
            out,
            dimensions=dimensions,
            texts=read,
            smoothing=smoothing,
            epochs=epochs,
            seed=seed,
            progress=report,
        )
    if json:
        print_json(plain(result))
        return
    parts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result.seconds.items())
    print(
        f"{out} is ready: {result.vocabulary:,} tokens in {result.dimensions} dimensions, with "
        f"{result.explained:.0%} of the variance ({parts})"
    )
    if result.cosine is not None:
        print(
            f"cosine with the teacher on held-out texts: {result.cosine_before:.3f} before training, "
            f"{result.cosine:.3f} after {result.epochs} epochs on {result.texts:,} texts"
        )
    print(f"try it: unmask similarity 'a text' 'another text' -m {out}")


def export(
    source: Annotated[str, Parameter(help="a checkpoint folder, a hub id, or default")],
    out: Annotated[
        Path, Parameter(name=["--out", "-o"], help="the folder to write, which must not exist, or be empty")
    ],
    *,
    output: Annotated[
        list[OutputName] | None,
        listed("what the graph computes; default: what the checkpoint gives", spaces=False),
    ] = None,
    role: Annotated[
        str | None, Parameter(help="the head whose logits are computed; default: the checkpoint's first")
    ] = None,
    max_tokens: Annotated[
        int | None, Parameter(help="the most tokens of a text; default: those that the checkpoint reads")
    ] = None,
    revision: RevisionOption = None,
    compat: CompatOption = "published",
    adapter: AdapterOption = None,
    ignore_tensor: IgnoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write an encoder as an ONNX graph, for ONNX Runtime, OpenVINO and other runtimes.

    The folder holds model.onnx in float32, the files of the tokenizer and config.json. The graph reads
    input_ids, attention_mask and, if the model has several token types, token_type_ids of any number of
    texts and tokens, padded at the end. Before the folder appears, the graph is run in ONNX Runtime and
    compared with the encoder.
    """
    from unmask.engines.export.onnx import export_onnx
    from unmask.weights import find, read_checkpoint
    from unmask.weights.adapters.adapter import adapted, find_adapter
    from unmask.weights.elmo import find_elmo

    source_files = find(source, revision)
    if find_elmo(source_files.folder) is not None:
        raise InvalidRequest(
            f"{source} is an ELMo, whose recurrent layers are not built as a graph; "
            "name a Transformer encoder"
        )
    checkpoint = read_checkpoint(source_files, compat, ignore_tensors=ignore_tensor or ())
    if adapter is not None:
        checkpoint = adapted(checkpoint, find_adapter(adapter), compat)
    exported = export_onnx(checkpoint, out, outputs=output, role=role, max_tokens=max_tokens)
    facts = {
        "folder": str(exported.folder),
        "inputs": list(exported.inputs),
        "outputs": list(exported.outputs),
        "role": exported.role,
        "max_tokens": exported.max_tokens,
        "largest_difference": exported.largest_difference,
        "megabytes": round(exported.megabytes, 1),
    }
    if json:
        print_json(facts)
        return
    head = f" of the {exported.role} head" if exported.role else ""
    print(
        f"{exported.folder}/model.onnx ({exported.megabytes:,.1f} MB) "
        f"reads {', '.join(exported.inputs)} of up to {exported.max_tokens:,} tokens and "
        f"gives {', '.join(exported.outputs)}{head}; in ONNX Runtime it differs "
        f"from the encoder by at most {exported.largest_difference:.1g}"
    )
