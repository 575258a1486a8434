"""Types of outputs, under vLLM's import path."""

from tetrad.frontend.request.outputs import CompletionOutput as CompletionOutput
from tetrad.frontend.request.outputs import RequestOutput as RequestOutput
from tetrad.library.pooling_outputs import ClassificationRequestOutput as ClassificationRequestOutput
from tetrad.library.pooling_outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from tetrad.library.pooling_outputs import ScoringRequestOutput as ScoringRequestOutput
