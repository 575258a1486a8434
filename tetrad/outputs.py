"""Outputs, where programs made for vLLM import them from."""

from tetrad.frontend.request.outputs import CompletionOutput as CompletionOutput
from tetrad.frontend.request.outputs import RequestOutput as RequestOutput
