"""Beam search classes, under vLLM's import path."""

from tetrad.frontend.llm.beam_search import BeamSearchOutput as BeamSearchOutput
from tetrad.frontend.llm.beam_search import BeamSearchParams as BeamSearchParams
from tetrad.frontend.llm.beam_search import BeamSearchSequence as BeamSearchSequence
