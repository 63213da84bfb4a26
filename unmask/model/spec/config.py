"""Keys of config.json that say nothing about an encoder's outputs."""

WITHOUT_EFFECT: dict[str, str] = {
    "_name_or_path": "where it was saved from",
    "_num_labels": "labels of a task head",
    "architectures": "the class it was saved from; tensors decide what is there",
    "bos_token_id": "generation",
    "classifier_dropout": "training of a task head",
    "dtype": "the files say it themselves",
    "eos_token_id": "generation",
    "finetuning_task": "a note",
    "gradient_checkpointing": "memory in training",
    "id2label": "labels of a task head",
    "label2id": "labels of a task head",
    "model_type": "already used to find the family",
    "output_attentions": "what its own library returns",
    "output_hidden_states": "what its own library returns",
    "problem_type": "loss of a task head",
    "return_dict": "what its own library returns",
    "tie_word_embeddings": "a masked-LM head",
    "torch_dtype": "the files say it themselves",
    "transformers_version": "who wrote it",
    "use_cache": "generation",
}
"""Keys that change no output of the encoder, and what they are about."""
