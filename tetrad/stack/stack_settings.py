"""StackSettings: the settings of every service of a local stack, and the numbers of its services.

Made by the command line and by the engines of a program, read by the local stack. Knows what several models and several
frontends must not have in common; starts nothing.
"""

from dataclasses import dataclass

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest
from tetrad.services.hub.model_files import CacheSettings
from tetrad.services.settings import Settings
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

MAX_API_SERVERS = 32
"""The largest number of frontends of a stack."""

SETTINGS: tuple[type[Settings], ...] = (
    TokenizerSettings,
    EngineCoreSettings,
    WorkerSettings,
    FrontendSettings,
    CacheSettings,
)
"""The settings of all services that a stack runs: they define the possible TETRAD_* variables."""


@dataclass(frozen=True)
class StackSettings:
    """The settings of every service of a stack. The stack itself sets `listen`, targets and lifelines.

    Args:
        frontend: a served stack listens at its `host`, `port` and `grpc_port`.
        num_tokenizers: the number of tokenizers. None: two in a served stack, so that clients do not notice the loss of one (a
            new one takes longer to start than they should wait), else one.
        data_parallel_size: the number of engine cores, each with its own workers; the frontend distributes requests over them.
        num_prefill_engines: the number of further engine cores that compute prompts for those of `data_parallel_size`, which
            then have the role consumer instead of their settings' role.
        tensor_parallel_size, pipeline_parallel_size: the numbers of shards and stages of the model; each shard of each stage is
            one worker of an engine core.
        api_server_count: the number of frontends of a served stack, which share its ports, limits and store of responses.
        further: the settings of further models behind the same frontends, each with its own other services. Of a further
            model's frontend settings only those that differ between models apply: names, parsers, sampling defaults, adapters.

    Raises:
        InvalidRequest: two models have the same name, a setting needs another one, or several frontends cannot share what the
            settings ask for.
    """

    tokenizer: TokenizerSettings
    engine_core: EngineCoreSettings
    worker: WorkerSettings
    frontend: FrontendSettings
    num_tokenizers: int | None = None
    data_parallel_size: int = 1
    num_prefill_engines: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    api_server_count: int = 1
    further: tuple["StackSettings", ...] = ()

    @property
    def num_engines(self) -> int:
        """The number of engine cores: the first ones generate, the last `num_prefill_engines` compute prompts."""
        return self.data_parallel_size + self.num_prefill_engines

    @property
    def num_ranks(self) -> int:
        """The number of workers of an engine core."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def shares_experts(self) -> bool:
        """Whether the workers of all engine cores hold the experts together."""
        return self.engine_core.enable_expert_parallel and self.data_parallel_size > 1

    @property
    def models(self) -> tuple["StackSettings", ...]:
        """The settings of every model, in order."""
        return (self, *self.further)

    def __post_init__(self) -> None:
        """Check the names of the models, settings that need others, and those that several frontends must share."""
        owners = [name for model in self.models for name in model.frontend.names]
        if twice := next((name for name in owners if owners.count(name) > 1), None):
            raise InvalidRequest(f"Two models have the name {twice!r}; each needs names of its own.", field="also")
        self._check_prefill_engines()
        if self.frontend.default_mm_loras and not self.engine_core.enable_lora:
            raise InvalidRequest("default_mm_loras needs --enable-lora.", field="default_mm_loras")
        count, most = self.api_server_count, MAX_API_SERVERS
        if not 1 <= count <= most:
            raise InvalidRequest(f"api_server_count must be between 1 and {most}, got {count}.", field="api_server_count")
        if count == 1:
            return
        if self.frontend.responses_store == ":memory:":
            text = "responses_store :memory: is of one frontend alone; with api_server_count above 1 use a file, or none."
            raise InvalidRequest(text, field="responses_store")
        if self.frontend.allow_runtime_lora_updating:
            text = "allow_runtime_lora_updating needs api_server_count 1: the other frontends would not know the adapters."
            raise InvalidRequest(text, field="allow_runtime_lora_updating")

    def _check_prefill_engines(self) -> None:
        """Refuse prefill engines for models whose KV blocks cannot be moved."""
        if not self.num_prefill_engines:
            return
        why = ""
        if self.num_ranks > 1:
            why = f"a model on one worker; tensor_parallel_size and pipeline_parallel_size divide it among {self.num_ranks}"
        elif self.shares_experts:
            why = "the experts on each worker; enable_expert_parallel divides them among the engine cores"
        elif not self.engine_core.enable_prefix_caching:
            why = "enable_prefix_caching: KV blocks are found by their content"
        elif drafter := self.engine_core.drafter:
            why = f"no drafter, whose blocks are not moved; speculative_config has method {drafter}"
        if why:
            raise InvalidRequest(f"num_prefill_engines needs {why}.", field="num_prefill_engines")
