"""Operations: LLM's and LLMEngine's methods for the engine itself, beside generation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tetrad.drop_in.shared_verdicts import NO_CONNECTOR, NO_DELAY, NO_END
from tetrad.frontend.engine.admin_client import PauseMode
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
        """Return counters, gauges and histograms with their present values; the HTTP API's /metrics has the same names."""
        return snapshot(self._running.frontend.metrics.registry)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Return the model's tasks."""
        return ("generate",)

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return the number of workers: of all engine cores, or of one."""
        return self._running.frontend.num_engines if include_dp else 1

    @takes(reset_connector=NO_CONNECTOR)
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes, and return whether that could be done: it cannot while requests run.

        Args:
            reset_running_requests: preempt what runs, so that it can; such requests go on afterwards.
        """
        admin = self._running.frontend.engine_admin
        return self._running.run(admin.reset_prefix_cache(reset_running_requests=reset_running_requests))

    def reset_mm_cache(self) -> None:
        """Return: no model here has such a cache."""

    def reset_encoder_cache(self) -> None:
        """Return: no model here has such a cache."""

    def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Give the memory of the device up until `wake_up`; requests that come meanwhile are refused.

        Args:
            level: 0 pauses alone, 1 keeps the weights in host memory, 2 drops them.
            mode: what happens to requests: "keep" computes them again afterwards, "wait" lets those that run finish first,
                "abort" ends all.

        Raises:
            InvalidRequest: another level.
            AlreadyExists: it sleeps at another level.
        """
        self._running.run(self._running.frontend.engine_admin.sleep(level, mode))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`; weights that were dropped are loaded again.

        Args:
            tags: "weights", then "kv_cache", for a caller who needs the memory between the two; by default all.
        """
        self._running.run(self._running.frontend.engine_admin.wake_up(tags or ()))

    def is_sleeping(self) -> bool:
        """Return whether it sleeps, at whatever level."""
        return self._running.run(self._running.frontend.engine_admin.state()).is_sleeping

    @takes(delay_iterations=NO_DELAY, max_iterations=NO_END)
    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what the engine core and its worker do, call by call, until `stop_profile`.

        Args:
            profile_prefix: first part of the files' names.
        """
        self._running.run(self._running.frontend.engine_admin.start_profile(profile_prefix or ""))

    def stop_profile(self) -> list[str]:
        """Write what was recorded and return the files, for Perfetto, as those services see them."""
        return self._running.run(self._running.frontend.engine_admin.stop_profile())

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a registered method of every worker ("get_pid", for instance), and return each one's result.

        Args:
            method: its name; with `allow_functions` also a function at the top of a module, which gets the worker first.
            timeout: longest wait in seconds; None: as long as it takes. A function that runs on ends its worker, which comes
                back; requests are computed again.
            args, kwargs: its arguments, of what JSON has, as its result.

        Raises:
            NotFound: no such method.
            UnsupportedArgument: a function without `allow_functions`, or for services that were started elsewhere.
            InvalidRequest: a function that a worker cannot import, or that raised an error.
            DeadlineExceeded: the time is over.
        """
        return self._call(method, args, kwargs or {}, timeout, "call_function")

    def apply_model(self, func: Callable[..., Any], timeout: float | None = None) -> list[Any]:
        """Call a function with the loaded model of every worker, and return the results; needs `allow_functions`.

        Args:
            func: at the top of a module; gets a worker_svc LoadedModel and returns what JSON has.
            timeout: as in `collective_rpc`.

        Raises what `collective_rpc` raises.
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
        """End the services that were started here, within 5 s; this happens by itself when the program ends."""
        self._running.close()
