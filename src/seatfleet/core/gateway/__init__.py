"""Aliases and keys in LiteLLM: what should be there, the steps to it, and what an answer means."""
