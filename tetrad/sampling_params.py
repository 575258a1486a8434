"""SamplingParams and its parts, where programs made for vLLM import them from."""

from tetrad.frontend.llm.beam_search import BeamSearchParams as BeamSearchParams
from tetrad.frontend.request.sampling_params import RequestOutputKind as RequestOutputKind
from tetrad.frontend.request.sampling_params import SamplingParams as SamplingParams
from tetrad.frontend.request.structured_outputs import GuidedDecodingParams as GuidedDecodingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
