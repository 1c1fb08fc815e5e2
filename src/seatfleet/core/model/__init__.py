"""Weights: manifests, tensors, and how many tokens their KV cache holds."""
