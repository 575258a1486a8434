"""Types of log-probabilities, under vLLM's import path."""

from tetrad.frontend.request.position_logprobs import FlatLogprobs as FlatLogprobs
from tetrad.frontend.request.position_logprobs import Logprob as Logprob
