"""EngineArgs, under vLLM's import path."""

from tetrad.library.engine_args import AsyncEngineArgs as AsyncEngineArgs
from tetrad.library.engine_args import EngineArgs as EngineArgs
