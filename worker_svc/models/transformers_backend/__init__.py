"""Transformers backend: runs models that no family describes through transformers' own modelling code, over our KV pages."""
