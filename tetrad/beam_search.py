"""Beam search, where programs made for vLLM import them from."""

from tetrad.frontend.llm.beam_search import BeamSearchOutput as BeamSearchOutput
from tetrad.frontend.llm.beam_search import BeamSearchParams as BeamSearchParams
from tetrad.frontend.llm.beam_search import BeamSearchSequence as BeamSearchSequence
