"""SamplingParams and its parts, under vLLM's import path."""

from tetrad.frontend.llm.beam_search import BeamSearchParams as BeamSearchParams
from tetrad.frontend.request.sampling_params import RequestOutputKind as RequestOutputKind
from tetrad.frontend.request.sampling_params import SamplingParams as SamplingParams
from tetrad.frontend.request.structured_outputs import GuidedDecodingParams as GuidedDecodingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
