"""Transformers backend: runs models of no described family with transformers' modelling code, on this worker's KV pages."""
