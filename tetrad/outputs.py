"""Outputs, where programs made for vLLM import them from."""

from tetrad.frontend.outputs import CompletionOutput as CompletionOutput
from tetrad.frontend.outputs import RequestOutput as RequestOutput
