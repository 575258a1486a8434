"""LoRARequest, under vLLM's import path."""

from tetrad.frontend.request.outputs import LoRARequest as LoRARequest
