"""Tetrad: LLM serving as four gRPC services, and the Python classes that use them.

The names in this module are public. Each name is imported at its first use, so that `import tetrad` takes almost no time and a
service's image needs only its own dependencies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tetrad.frontend.llm.beam_search import BeamSearchOutput as BeamSearchOutput
    from tetrad.frontend.llm.beam_search import BeamSearchParams as BeamSearchParams
    from tetrad.frontend.llm.beam_search import BeamSearchSequence as BeamSearchSequence
    from tetrad.frontend.request.outputs import CompletionOutput as CompletionOutput
    from tetrad.frontend.request.outputs import LoRARequest as LoRARequest
    from tetrad.frontend.request.outputs import RequestOutput as RequestOutput
    from tetrad.frontend.request.pooling import PoolingParams as PoolingParams
    from tetrad.frontend.request.prompts import EmbedsPrompt as EmbedsPrompt
    from tetrad.frontend.request.prompts import PromptType as PromptType
    from tetrad.frontend.request.prompts import TextPrompt as TextPrompt
    from tetrad.frontend.request.prompts import TokensPrompt as TokensPrompt
    from tetrad.frontend.request.sampling_params import SamplingParams as SamplingParams
    from tetrad.library.async_llm import AsyncLLM as AsyncLLM
    from tetrad.library.async_llm import AsyncLLM as AsyncLLMEngine
    from tetrad.library.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from tetrad.library.engine_args import EngineArgs as EngineArgs
    from tetrad.library.llm import LLM as LLM
    from tetrad.library.llm_engine import LLMEngine as LLMEngine
    from tetrad.services import version

    __version__ = version.VERSION

_EXPORTS = {
    "LLM": ("tetrad.library.llm", "LLM"),
    "LLMEngine": ("tetrad.library.llm_engine", "LLMEngine"),
    "AsyncLLM": ("tetrad.library.async_llm", "AsyncLLM"),
    "AsyncLLMEngine": ("tetrad.library.async_llm", "AsyncLLM"),
    "EngineArgs": ("tetrad.library.engine_args", "EngineArgs"),
    "AsyncEngineArgs": ("tetrad.library.engine_args", "AsyncEngineArgs"),
    "BeamSearchOutput": ("tetrad.frontend.llm.beam_search", "BeamSearchOutput"),
    "BeamSearchParams": ("tetrad.frontend.llm.beam_search", "BeamSearchParams"),
    "BeamSearchSequence": ("tetrad.frontend.llm.beam_search", "BeamSearchSequence"),
    "SamplingParams": ("tetrad.frontend.request.sampling_params", "SamplingParams"),
    "RequestOutput": ("tetrad.frontend.request.outputs", "RequestOutput"),
    "CompletionOutput": ("tetrad.frontend.request.outputs", "CompletionOutput"),
    "LoRARequest": ("tetrad.frontend.request.outputs", "LoRARequest"),
    "PoolingParams": ("tetrad.frontend.request.pooling", "PoolingParams"),
    "EmbedsPrompt": ("tetrad.frontend.request.prompts", "EmbedsPrompt"),
    "PromptType": ("tetrad.frontend.request.prompts", "PromptType"),
    "TextPrompt": ("tetrad.frontend.request.prompts", "TextPrompt"),
    "TokensPrompt": ("tetrad.frontend.request.prompts", "TokensPrompt"),
    "__version__": ("tetrad.services.version", "VERSION"),
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "LLMEngine",
    "LoRARequest",
    "PoolingParams",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tetrad' has no attribute {name!r}")
    module, attribute = _EXPORTS[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all public names, also those that have not been imported yet."""
    return sorted(__all__)
