"""LoRARequest, where programs made for vLLM import them from."""

from tetrad.frontend.request.outputs import LoRARequest as LoRARequest
