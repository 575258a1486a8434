"""Settings of the worker: device, threads, memory. Measured values (free memory, block count) are not settings."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tetrad.services.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """Flags, TETRAD_WORKER_* variables or the keys of a YAML file (--config FILE)."""

    model_config = SettingsConfigDict(env_prefix="TETRAD_WORKER_")

    listen: str = Field("127.0.0.1:50053", description="Address of the gRPC server: host:port or unix:/path. Port 0: any.")
    device: Literal["auto", "cuda", "cpu", "sim"] = Field(
        "auto",
        description="Where steps run. auto: an NVIDIA GPU if there is one, else the cpu; sim: no model, tokens from a hash.",
    )
    model: str | None = Field(
        None,
        description="Model to load at start: a built-in name, a directory or a .gguf file. Unset: when the engine core asks.",
    )
    rank: int = Field(0, ge=0, description="Rank of this worker in its group.")
    threads: int = Field(0, ge=0, description="Compute threads of the cpu device. 0: as many as cores this process may use.")
    cpu_kernels: Literal["auto", "native", "torch"] = Field(
        "auto", description="What runs models on the cpu device. auto: the native kernels, torch where they cannot be had."
    )
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "fp8", "int8"] = Field(
        "auto",
        description="Type of keys and values. auto: that of the activations on the cuda device; on the cpu device float32, but "
        "under quantized weights int8 with a scale for 32 dimensions, or float16 if the model's keys have biases or norms. "
        "Only the cuda device has bfloat16 and fp8, only the cpu device int8.",
    )
    kv_cache_memory_gib: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Memory of the KV cache, in GiB; more than is free is refused. Unset: on the cpu device 4, or less where "
        "less is free; on the cuda device what gpu_memory_utilization leaves.",
    )
    cpu_offload_gb: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="cuda: GiB of device memory to save by keeping weights of layers in pinned host memory, from where every "
        "step copies them. More than the layers have: all of them.",
    )
    enforce_eager: bool = Field(
        False,
        description="cuda: launch the kernels of every step one by one, instead of replaying graphs for steps of decodes.",
    )
    max_queued_steps: int = Field(
        8, ge=2, description="Plans that may wait for the device before the stream is not read further."
    )
    stuck_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that a step may outlive its stream before the device counts as stuck and the process ends.",
    )
    profile_dir: str = Field(
        "", description="Directory that StopProfile writes its traces to. Empty: profiles in Tetrad's cache directory."
    )
    sim_seconds_per_step: float = Field(0.0, ge=0, description="sim: a step's fixed cost, in seconds.")
    sim_seconds_per_token: float = Field(0.0, ge=0, description="sim: cost of each scheduled token, in seconds.")
    sim_seconds_per_context_token: float = Field(
        0.0, ge=0, description="sim: cost of each token of context that a scheduled request already has, in seconds."
    )
    sim_crash_token_id: int | None = Field(
        None, ge=0, description="sim: the process dies of a prompt with this token, for tests of recovery. Unset: of none."
    )
    sim_fail_token_id: int | None = Field(
        None, ge=0, description="sim: a prompt with this token fails alone after three tokens, for tests. Unset: none does."
    )
    sim_kv_cache_memory_gib: float = Field(
        4.0, gt=0, description="sim: memory that the device pretends to have for KV, in GiB."
    )
