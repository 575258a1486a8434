"""LoRARequest, where programs made for vLLM import them from."""

from tetrad.frontend.outputs import LoRARequest as LoRARequest
