"""AsyncOperations: AsyncLLM's methods for the engine itself, beside generation.

operations.py has the same for blocking programs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tetrad.drop_in.shared_verdicts import NO_CONNECTOR, NO_DELAY, NO_END
from tetrad.frontend.engine.admin_client import PauseMode
from tetrad.frontend.llm.async_llm import AsyncLLM as Frontend
from tetrad.library.functions import call_workers
from tetrad.services.verdicts import takes


class AsyncOperations:
    """The base of AsyncLLM."""

    @property
    def runs_functions(self) -> bool:
        """Whether the services are this program's own, and run its functions."""
        raise NotImplementedError

    async def start(self) -> Frontend:
        """Return the frontend, starting everything if that has not happened."""
        raise NotImplementedError

    async def pause_generation(self, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
        """Stop scheduling; requests that come later wait for `resume_generation`.

        Args:
            mode: what happens to requests: "abort" ends them, "wait" lets those that run finish, "keep" freezes them.
            clear_cache: forget cached prefixes too.
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
        """Forget all cached prefixes, and return whether that could be done. See LLM.reset_prefix_cache."""
        admin = (await self.start()).engine_admin
        return await admin.reset_prefix_cache(reset_running_requests=reset_running_requests)

    async def reset_mm_cache(self) -> None:
        """Return: no model here has such a cache."""

    async def reset_encoder_cache(self) -> None:
        """Return: no model here has such a cache."""

    @takes(delay_iterations=NO_DELAY, max_iterations=NO_END)
    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what the engine core and its worker do, call by call, until `stop_profile`."""
        await (await self.start()).engine_admin.start_profile(profile_prefix or "")

    async def stop_profile(self) -> list[str]:
        """Write what was recorded and return the files, for Perfetto, as those services see them."""
        return await (await self.start()).engine_admin.stop_profile()

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,  # noqa: ASYNC109 - vLLM's name
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a registered method or a function of every worker; return each one's result. See LLM.collective_rpc."""
        admin, are_allowed = (await self.start()).engine_admin, self.runs_functions
        return await call_workers(admin, method, args, kwargs or {}, timeout_s=timeout, are_allowed=are_allowed)

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Give the memory of the device up until `wake_up`. Arguments and errors: see LLM.sleep."""
        await (await self.start()).engine_admin.sleep(level, mode)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`, for "weights" and then for "kv_cache", or for all."""
        await (await self.start()).engine_admin.wake_up(tags or ())

    async def is_sleeping(self) -> bool:
        """Return whether it sleeps, at whatever level."""
        return (await (await self.start()).engine_admin.state()).is_sleeping
