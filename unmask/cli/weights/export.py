"""``unmask export``: an encoder as an ONNX graph."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.cli.lists import listed
from unmask.cli.options import AdapterOption, CompatOption, IgnoreOption, JsonOption, RevisionOption
from unmask.cli.output import print_json
from unmask.engines.export.names import OutputName
from unmask.errors import InvalidRequest


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
    from unmask.weights.elmo.find import find_elmo

    found = find(source, revision)
    if find_elmo(found.folder) is not None:
        raise InvalidRequest(
            f"{source} is an ELMo, whose recurrent layers are not built as a graph; "
            "name a Transformer encoder"
        )
    checkpoint = read_checkpoint(found, compat, ignore_tensors=ignore_tensor or ())
    if adapter is not None:
        checkpoint = adapted(checkpoint, find_adapter(adapter), compat)
    made = export_onnx(checkpoint, out, outputs=output, role=role, max_tokens=max_tokens)
    told = {
        "folder": str(made.folder),
        "inputs": list(made.inputs),
        "outputs": list(made.outputs),
        "role": made.role,
        "max_tokens": made.max_tokens,
        "largest_difference": made.largest_difference,
        "megabytes": round(made.megabytes, 1),
    }
    if json:
        print_json(told)
        return
    head = f" of the {made.role} head" if made.role else ""
    print(
        f"{made.folder}/model.onnx ({made.megabytes:,.1f} MB) reads {', '.join(made.inputs)} of up to "
        f"{made.max_tokens:,} tokens and gives {', '.join(made.outputs)}{head}; in ONNX Runtime it differs "
        f"from the encoder by at most {made.largest_difference:.1g}"
    )
