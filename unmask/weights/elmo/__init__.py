"""The files of ELMo's authors, and ours."""
