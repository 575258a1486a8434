"""Types of log-probabilities, under vLLM's import path."""

from tetrad.frontend.request.outputs import Logprob as Logprob
