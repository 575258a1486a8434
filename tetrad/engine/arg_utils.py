"""EngineArgs, where programs made for vLLM import them from."""

from tetrad.library.engine_args import AsyncEngineArgs as AsyncEngineArgs
from tetrad.library.engine_args import EngineArgs as EngineArgs
