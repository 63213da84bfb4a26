"""A small random Longformer with a classifier of texts, written by `transformers`."""

from tests.support.tiny import VOCABULARY, write_tokenizer


def write_longformer(folder):
    """A checkpoint folder; returns the folder."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.LongformerConfig(
        vocab_size=len(VOCABULARY), hidden_size=24, num_attention_heads=3, intermediate_size=30,
        num_hidden_layers=2, attention_window=[4, 4], max_position_embeddings=60, type_vocab_size=1,
        pad_token_id=0, num_labels=3,
    )  # fmt: skip
    model = transformers.LongformerForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
