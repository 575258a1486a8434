"""Operations: LLM's and LLMEngine's methods that control the engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tetrad.drop_in.shared_verdicts import NO_CONNECTOR
from tetrad.frontend.engine.admin_client import PauseMode
from tetrad.frontend.llm.model_tasks import tasks_of
from tetrad.library.functions import call_workers
from tetrad.library.metrics_reader import Metric, snapshot
from tetrad.library.running_llm import RunningLLM
from tetrad.library.tokenizer import Tokenizer
from tetrad.services.errors import InvalidRequest
from tetrad.services.verdicts import takes


class Operations:
    """The base of LLM and LLMEngine."""

    _running: RunningLLM

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return Tokenizer(self._running.frontend, self._running.loop)

    def get_metrics(self) -> list[Metric]:
        """Return the present values of counters, gauges and histograms; /metrics of the HTTP API has the same names."""
        return snapshot(self._running.frontend.metrics.registry)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Return the model's tasks."""
        return tasks_of(self._running.frontend)

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return the number of engine cores; 1 if not `include_dp`."""
        return self._running.frontend.num_engines if include_dp else 1

    @takes(reset_connector=NO_CONNECTOR)
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache, and return whether this was possible: it is not while requests run.

        Args:
            reset_running_requests: preempt running requests, so that it is possible; they continue afterwards.
        """
        admin = self._running.frontend.engine_admin
        return self._running.run(admin.reset_prefix_cache(reset_running_requests=reset_running_requests))

    def reset_mm_cache(self) -> None:
        """Clear the tokenizers' caches of preprocessed images, audio and video."""
        self._running.run(self._running.frontend.reset_mm_cache())

    def reset_encoder_cache(self) -> None:
        """Clear the cache of media's embeddings; those that running requests will read are forgotten afterwards."""
        self._running.run(self._running.frontend.engine_admin.reset_encoder_cache())

    def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Release the memory of the device until `wake_up`; requests in the meantime are refused.

        Args:
            level: 0 only pauses, 1 keeps the weights in host memory, 2 drops them.
            mode: "keep" computes unfinished requests again afterwards, "wait" lets running ones finish first, "abort" ends all.

        Raises:
            InvalidRequest: another level.
            AlreadyExists: the engine sleeps at another level.
        """
        self._running.run(self._running.frontend.engine_admin.sleep(level, mode))

    def release_kv_cache_memory(self) -> None:
        """Release the memory of the KV cache until `wake_up`, for an update of the weights that needs it; the weights stay.

        Requests are kept, as by `sleep`. Raises AlreadyExists if the engine sleeps.
        """
        self._running.run(self._running.frontend.engine_admin.release_kv_cache_memory())

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`; dropped weights are loaded again.

        Args:
            tags: the parts to wake up, for programs that need the memory between "weights" and "kv_cache"; None: all.
        """
        self._running.run(self._running.frontend.engine_admin.wake_up(tags or ()))

    def is_sleeping(self) -> bool:
        """Return whether the engine sleeps, at any level."""
        return self._running.run(self._running.frontend.engine_admin.state()).is_sleeping

    def start_profile(
        self, profile_prefix: str | None = None, delay_iterations: int | None = None, max_iterations: int | None = None
    ) -> None:
        """Profile the engine core and its worker until `stop_profile`.

        Args:
            profile_prefix: prefix of the files' names.
            delay_iterations: number of steps that the worker runs before it records.
            max_iterations: number of steps that it records; None: all.
        """
        admin = self._running.frontend.engine_admin
        self._running.run(admin.start_profile(profile_prefix or "", delay_iterations or 0, max_iterations or 0))

    def stop_profile(self) -> list[str]:
        """Write the profiles, for Perfetto, and return the paths of their files on the machines of the services."""
        return self._running.run(self._running.frontend.engine_admin.stop_profile())

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a registered method, such as "get_pid", on every worker, and return the results.

        Args:
            method: name of the method; with `allow_functions` also a function at the top level of a module, whose first
                argument is the worker.
            timeout: maximum wait in seconds; None: no limit. If a function exceeds it, its worker is restarted; requests are
                computed again.
            args, kwargs: the arguments, of JSON types like the result.

        Raises:
            NotFound: there is no such method.
            UnsupportedArgument: a function without `allow_functions`, or for services that were started elsewhere.
            InvalidRequest: a function that a worker cannot import, or that raised an error.
            DeadlineExceeded: the method did not finish within `timeout`.
        """
        return self._call(method, args, kwargs or {}, timeout, "call_function")

    def apply_model(self, func: Callable[..., Any], timeout: float | None = None) -> list[Any]:
        """Call a function with the loaded model of every worker, and return the results; needs `allow_functions`.

        Args:
            func: a function at the top level of a module; gets worker_svc's LoadedModel and returns a value of JSON types.
            timeout: see `collective_rpc`.

        Errors: see `collective_rpc`.
        """
        if isinstance(func, str):
            raise InvalidRequest(f"func must be a function, got the name {func[:80]!r}.", field="func")
        return self._call(func, (), {}, timeout, "apply_to_model")

    def _call(
        self,
        method: str | Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout_s: float | None,
        on: str,
    ) -> list[Any]:
        running = self._running
        are_allowed = running.llm.runs_functions
        admin = running.frontend.engine_admin
        return running.run(call_workers(admin, method, args, kwargs, timeout_s=timeout_s, are_allowed=are_allowed, on=on))

    def close(self) -> None:
        """Stop the services that this object started, within 5 s; also done automatically at the end of the program."""
        self._running.close()
