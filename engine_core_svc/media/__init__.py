"""Media of prompts: which items the worker encodes, and which tokens wait for them."""
