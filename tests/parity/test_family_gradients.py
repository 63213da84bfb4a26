"""Gradients of every tensor of families with parts of their own, in float64, as in `transformers`."""

import numpy as np
import pytest
import torch

from tests.contracts.cases import cases
from tests.contracts.test_transformers import Exact, random_model, write_vocabulary
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import their_tensors

MODELS = (
    *("XLMRobertaXLForMaskedLM relu", "RobertaPreLayerNormForMaskedLM relu", "MegatronBertForMaskedLM"),
    *("ErnieForMaskedLM relu", "RoFormerForMaskedLM E above D", "RemBertForMaskedLM wide"),
    *("EsmForMaskedLM", "EsmcForMaskedLM said to be tied", "T5ForTokenClassification"),
    *("ConvBertForMaskedLM", "ConvBertForMaskedLM untied", "OpenAIPrivacyFilterForTokenClassification"),
    *("MobileBertForMaskedLM gelu", "MobileBertForMaskedLM untied", "MobileBertForTokenClassification"),
    *("EmbeddingGemma2TextModel", "EmbeddingGemma2TextModel the first reads all"),
)
CASES = {str(case).removesuffix(" published"): case for case in cases()}


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, tmp_path):
    case = CASES[name]
    model = random_model(case)
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path, case.vocabulary)
    checkpoint = read_checkpoint(Source(tmp_path, "tiny"))
    encoder = build(checkpoint, dtype="float64").train(False)
    rng = np.random.default_rng(4)
    texts = [rng.integers(case.first_id, case.vocabulary, length).tolist() for length in (5, 11)]
    batch = PackedBatch.of_ids(texts)
    logits_TC = encoder.encode(batch)
    for role in encoder.heads:
        logits_TC = encoder.logits(role, logits_TC, batch.layout)
    weights_TC = torch.randn(logits_TC.shape, dtype=torch.float64)
    (logits_TC * weights_TC).sum().backward()
    with Exact():
        theirs = [model(torch.tensor([ids]))[0][0] for ids in texts]
        (torch.cat(theirs) * weights_TC).sum().backward()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    ours = their_tensors(encoder, checkpoint.family)
    compared = 0
    for tensor, parameter in model.named_parameters():
        if parameter.grad is None or tensor not in ours:
            continue
        np.testing.assert_allclose(ours[tensor], parameter.grad, rtol=1e-8, atol=1e-9, err_msg=tensor)
        compared += 1
    factors = [name for name in ours if name.endswith("layer_scalar")]  # which are not trained
    assert compared >= len(ours) - 1 - len(factors)
