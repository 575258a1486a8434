"""Log-probabilities, where programs made for vLLM import them from."""

from tetrad.frontend.outputs import Logprob as Logprob
