"""AsyncOperations: AsyncLLM's methods that control the engine.

operations.py has the same methods for blocking programs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tetrad.drop_in.shared_verdicts import NO_CONNECTOR
from tetrad.frontend.engine.admin_client import PauseMode
from tetrad.frontend.llm.async_llm import AsyncLLM as Frontend
from tetrad.library.functions import call_workers
from tetrad.services.verdicts import takes


class AsyncOperations:
    """The base of AsyncLLM."""

    @property
    def runs_functions(self) -> bool:
        """Whether this program started the services and they may run its functions."""
        raise NotImplementedError

    async def start(self) -> Frontend:
        """Start the services and the frontend, if they have not been started, and return the frontend."""
        raise NotImplementedError

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Stop scheduling; later requests wait for `resume_generation`.

        Args:
            mode: "abort" ends all requests, "wait" lets running ones finish and waits for them, "keep" freezes them.
            clear_cache: also clear the prefix cache; frozen requests are computed again.
        """
        await (await self.start()).engine_admin.pause(mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """Undo `pause_generation`."""
        await (await self.start()).engine_admin.resume()

    async def is_paused(self) -> bool:
        """Return whether scheduling is stopped."""
        return (await (await self.start()).engine_admin.state()).is_paused

    @takes(reset_connector=NO_CONNECTOR)
    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache, and return whether this was possible. See LLM.reset_prefix_cache."""
        admin = (await self.start()).engine_admin
        return await admin.reset_prefix_cache(reset_running_requests=reset_running_requests)

    async def reset_mm_cache(self) -> None:
        """Clear the tokenizers' caches of preprocessed images, audio and video."""
        await (await self.start()).reset_mm_cache()

    async def reset_encoder_cache(self) -> None:
        """Clear the cache of media's embeddings; those that running requests will read are forgotten afterwards."""
        await (await self.start()).engine_admin.reset_encoder_cache()

    async def start_profile(
        self, profile_prefix: str | None = None, delay_iterations: int | None = None, max_iterations: int | None = None
    ) -> None:
        """Profile the engine core and its worker until `stop_profile`."""
        await (await self.start()).engine_admin.start_profile(profile_prefix or "", delay_iterations or 0, max_iterations or 0)

    async def stop_profile(self) -> list[str]:
        """Write the profiles, for Perfetto, and return the paths of their files on the machines of the services."""
        return await (await self.start()).engine_admin.stop_profile()

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's name
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a registered method or a function on every worker; return the results. See LLM.collective_rpc."""
        admin, are_allowed = (await self.start()).engine_admin, self.runs_functions
        return await call_workers(admin, method, args, kwargs or {}, timeout_s=timeout, are_allowed=are_allowed)

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Release the memory of the device until `wake_up`. Arguments and errors: see LLM.sleep."""
        await (await self.start()).engine_admin.sleep(level, mode)

    async def release_kv_cache_memory(self) -> None:
        """Release the memory of the KV cache until `wake_up`; see LLM.release_kv_cache_memory."""
        await (await self.start()).engine_admin.release_kv_cache_memory()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep` for the parts in `tags` ("weights", "kv_cache"), or for all."""
        await (await self.start()).engine_admin.wake_up(tags or ())

    async def is_sleeping(self) -> bool:
        """Return whether the engine sleeps, at any level."""
        return (await (await self.start()).engine_admin.state()).is_sleeping
