"""Settings of the worker: device, threads, memory. Measured values (free memory, block count) are not settings."""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from tetrad.services.settings import JsonObject, Names, ServiceSettings


class WorkerSettings(ServiceSettings):
    """Options of the worker.

    Each is a flag (--threads), an environment variable (TETRAD_WORKER_THREADS) or a key of a YAML file
    (threads, with --config FILE).
    """

    model_config = SettingsConfigDict(env_prefix="TETRAD_WORKER_")

    listen: str = Field(
        "127.0.0.1:50053", description="Address of the gRPC server: host:port or unix:/path. Port 0: any free port."
    )
    device: Literal["auto", "cuda", "cpu", "sim"] = Field(
        "auto",
        description="Device that runs the model. auto: an NVIDIA GPU if there is one, else the CPU. sim: simulated, with no "
        "model and made-up tokens, for tests.",
    )
    model: str | None = Field(
        None,
        description="Model to load at start: a built-in name, a directory, a .gguf file or a Hugging Face id. Unset: the "
        "engine core names it.",
    )
    rank: int = Field(0, ge=0, description="Rank of this worker in its group.")
    expert_targets: Names = Field(
        (),
        description="Unix sockets (unix:/path) of the workers that share the experts of a model, one of each engine core, in "
        "the same order for all of them. Needs the cpu device and enable-expert-parallel of the engine cores. Empty: the "
        "workers of one engine core have all experts.",
    )
    expert_index: int = Field(0, ge=0, description="Place of this worker's own socket in expert-targets, from 0.")
    trust_remote_code: bool = Field(
        False,
        description="Run the Python code in a model's files (auto_map in config.json), in this process and with this user's "
        "rights. Use it only for models whose code you have read.",
    )
    language_model_only: bool = Field(
        False,
        description="Do not load the vision model of a model: it takes only text, and its memory is left for KV blocks.",
    )
    mm_processor_kwargs: JsonObject = Field(
        "",
        description="The tokenizer's option of this name, which may allow larger images than the model's files: memory is kept "
        "for the largest one. Empty: those of the files.",
    )
    allow_functions: bool = Field(
        False,
        description="Run functions that a program sends (LLM.apply_model, collective_rpc), in this process. Only in a stack "
        "that the program started itself, on a Unix socket: every process that reaches the worker may then run any code in it.",
    )
    logits_processors: Names = Field(
        (),
        description="Classes that change logits before tokens are chosen (module:Class), imported and run in this process with "
        "this user's rights; docs/requests.md says how to write one. Empty: none.",
    )
    threads: int = Field(
        0, ge=0, description="Number of compute threads of the cpu device. 0: one per core that this process may use."
    )
    cpu_kernels: Literal["auto", "native", "torch"] = Field(
        "auto", description="Kernels of the cpu device. auto: native kernels, or torch if they cannot be compiled."
    )
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "fp8", "int8"] = Field(
        "auto",
        description="Data type of the KV cache. auto: on the cuda device the type of activations; on the cpu device float32, "
        "except with quantized weights: int8 (one scale per 32 values), or float16 if the model's keys have "
        "biases or norms. bfloat16 and fp8 need the cuda device, int8 the cpu device.",
    )
    kv_cache_memory_gib: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Memory of the KV cache, in GiB. More than is free is refused. Unset: on the cpu device 4, or less if "
        "less is free; on the cuda device what gpu-memory-utilization leaves.",
    )
    cpu_offload_gb: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="cuda device: GiB of GPU memory to save by keeping weights of layers in pinned host memory and copying "
        "them in every step. More than the layers take: all of them.",
    )
    enforce_eager: bool = Field(
        False,
        description="cuda device: launch every kernel separately instead of replaying CUDA graphs, which steps of up to 1024 "
        "tokens have.",
    )
    max_queued_steps: int = Field(
        8, ge=2, description="Maximum number of plans that wait for the device; further ones are read later."
    )
    stuck_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that a step may run after its stream has ended before the device counts as stuck and the process "
        "ends.",
    )
    profile_dir: str = Field(
        "", description="Directory for the worker's profiles (StopProfile). Empty: profiles in Tetrad's cache directory."
    )
    sim_seconds_per_step: float = Field(0.0, ge=0, description="sim device: fixed time of a step, in seconds.")
    sim_seconds_per_token: float = Field(0.0, ge=0, description="sim device: time for each scheduled token, in seconds.")
    sim_seconds_per_context_token: float = Field(
        0.0, ge=0, description="sim device: time for each token of context of a scheduled request, in seconds."
    )
    sim_seconds_per_embedding: float = Field(
        0.0, ge=0, description="sim device: time to encode an image, for each of its embeddings, in seconds."
    )
    sim_crash_token_id: int | None = Field(
        None,
        ge=0,
        description="sim device: the process dies when a prompt has this token, for tests of recovery. Unset: never.",
    )
    sim_fail_token_id: int | None = Field(
        None,
        ge=0,
        description="sim device: a request whose prompt has this token fails after three tokens, for tests. Unset: never.",
    )
    sim_kv_cache_memory_gib: float = Field(4.0, gt=0, description="sim device: simulated memory of the KV cache, in GiB.")

    @model_validator(mode="after")
    def _check_expert_targets(self) -> Self:
        if other := next((target for target in self.expert_targets if not target.startswith("unix:/")), None):
            raise ValueError(f"expert_targets must be Unix sockets (unix:/path) of one machine, got {other[:200]!r}")
        if len(set(self.expert_targets)) < len(self.expert_targets):
            raise ValueError("expert_targets must not name one socket twice")
        if self.expert_index >= max(1, len(self.expert_targets)):
            raise ValueError(
                f"expert_index must be below the {len(self.expert_targets)} expert_targets, got {self.expert_index}"
            )
        return self
