"""LLM: generate from a Python program that blocks; vLLM's class of the same name.

A thin bridge: arguments become EngineArgs, calls become batches on the event loop of one background thread. Knows nothing of
services or processes. Not for several threads at once.
"""

import dataclasses
import random
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tetrad.async_llm import AsyncLLM, LocalServices, RemoteServices
from tetrad.batch import BatchItem, BatchRunner
from tetrad.engine_args import EngineArgs
from tetrad.event_loop_thread import EventLoopThread
from tetrad.frontend.outputs import RequestOutput
from tetrad.frontend.prompts import PromptType, TokensPrompt
from tetrad.frontend.sampling_params import SamplingParams
from tetrad.metrics_text import read_metrics
from tetrad.progress import ProgressBar
from tetrad.services.errors import InvalidRequest
from tetrad.services.model_files import DEFAULT_MODEL
from tetrad.tokenizer import Tokenizer

Conversation = Sequence[dict[str, Any]]

# vLLM's LLM class computes larger steps than its server: nobody waits for a single token here.
_OFFLINE_MAX_NUM_BATCHED_TOKENS = 8192


class LLM:
    """A language model and the services it needs, started with it and ended with it.

    Args:
        model: a built-in name, a directory, a .gguf file or a Hugging Face id.
        target: services that run already, instead of starting any: "TOKENIZER,ENGINE[,ENGINE...]", or the directory of a
            local stack. The engine arguments are those services' own then, and must be left out.
        seed: makes the sampling of requests without a seed of their own repeatable.
        kwargs: further EngineArgs.

    The other arguments are documented with EngineArgs.

    Raises:
        TypeError: an unknown argument.
        InvalidRequest: a value that is not supported.
        NotFound, FailedPrecondition: the model cannot be served.
        Unavailable: the services did not come up, or are not reachable.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        target: str | None = None,
        tokenizer: str | None = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        allowed_local_media_path: str = "",
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        quantization: str | None = None,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        seed: int | None = None,
        gpu_memory_utilization: float = 0.9,
        swap_space: float = 4,
        cpu_offload_gb: float = 0,
        enforce_eager: bool | None = None,
        max_seq_len_to_capture: int = 8192,
        disable_custom_all_reduce: bool = False,
        hf_overrides: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        task: str = "auto",
        override_pooler_config: object | None = None,
        compilation_config: object | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse_unknown(kwargs)
        args = EngineArgs(
            model=model,
            tokenizer=tokenizer,
            tokenizer_mode=tokenizer_mode,
            skip_tokenizer_init=skip_tokenizer_init,
            trust_remote_code=trust_remote_code,
            allowed_local_media_path=allowed_local_media_path,
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            quantization=quantization,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            seed=seed,
            gpu_memory_utilization=gpu_memory_utilization,
            swap_space=swap_space,
            cpu_offload_gb=cpu_offload_gb,
            enforce_eager=enforce_eager,
            max_seq_len_to_capture=max_seq_len_to_capture,
            disable_custom_all_reduce=disable_custom_all_reduce,
            hf_overrides=hf_overrides,
            mm_processor_kwargs=mm_processor_kwargs,
            task=task,
            override_pooler_config=override_pooler_config,
            compilation_config=compilation_config,
            **kwargs,
        )
        if target is None:
            args.max_num_batched_tokens = args.max_num_batched_tokens or _OFFLINE_MAX_NUM_BATCHED_TOKENS
        else:
            _refuse_engine_arguments(args)
        self._seeds = None if seed is None else random.Random(seed)
        self._loop = EventLoopThread()
        services = LocalServices(args) if target is None else RemoteServices(target, max_logprobs=args.max_logprobs)
        self._llm = self._loop.run(_make(services))
        # Also at the end of the interpreter, where __del__ is not certain.
        self._finalizer = weakref.finalize(self, _close, self._llm, self._loop)
        try:
            self._frontend = self._loop.run(self._llm.start())
        except BaseException:
            self._finalizer()
            raise
        self._batches = BatchRunner(self._frontend)

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Return one finished output per prompt, in the prompts' order.

        Args:
            prompts: one prompt (text, token ids, TextPrompt or TokensPrompt), or a list of them.
            sampling_params: for all prompts, or one per prompt; by default what the model's authors recommend.
            use_tqdm: show a progress bar on stderr.
            priority: one number per prompt; larger is more urgent.

        Raises:
            InvalidRequest: a bad prompt or parameter, or lists of different lengths. Nothing is generated then.
        """
        all_prompts = _as_prompts(prompts)
        items = self._items(all_prompts, sampling_params, priority)
        with ProgressBar(len(items), enabled=use_tqdm) as bar:
            return self._loop.run(self._batches.run(items, bar.add))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return the next turn of one conversation, or of each of a list of them.

        Args:
            messages: OpenAI's messages ({"role", "content"}), or a list of such lists.
            sampling_params: as in `generate`.
            use_tqdm: show a progress bar on stderr.
            chat_template: instead of the model's.
            add_generation_prompt: end the prompt where the assistant begins.
            continue_final_message: let the model continue the last message; needs `add_generation_prompt=False`.
            tools: OpenAI's tools, for the template.
            chat_template_kwargs: further variables for the template.

        Raises:
            InvalidRequest: bad messages or parameters, or what the template refuses.
        """
        conversations = _as_conversations(messages)

        async def render() -> list[TokensPrompt]:
            return [
                await self._frontend.encode_chat(
                    conversation,
                    tools=tools,
                    chat_template=chat_template,
                    chat_template_kwargs=chat_template_kwargs,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                )
                for conversation in conversations
            ]

        return self.generate(self._loop.run(render()), sampling_params, use_tqdm=use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return Tokenizer(self._frontend, self._loop)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what `generate` samples with if nothing is given."""
        return self._frontend.get_default_sampling_params()

    def get_metrics(self) -> dict[str, float]:
        """Return counters and gauges by name ("num_preemptions", "kv_cache_usage_perc", ...); see the HTTP API's /metrics."""
        return read_metrics(self._frontend.metrics.render().decode())

    def close(self) -> None:
        """End the services that were started here, within 5 s; this happens by itself when the program ends."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _items(
        self,
        prompts: Sequence[PromptType],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
    ) -> list[BatchItem]:
        if params is None:
            params = self.get_default_sampling_params()
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        _check_length("sampling_params", len(every), len(prompts))
        priorities = [0] * len(prompts) if priority is None else list(priority)
        _check_length("priority", len(priorities), len(prompts))
        return [
            BatchItem(prompt, self._seeded(own), number) for prompt, own, number in zip(prompts, every, priorities, strict=True)
        ]

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if self._seeds is None or params.seed is not None:
            return params
        return dataclasses.replace(params, seed=self._seeds.getrandbits(62))


async def _make(services: LocalServices | RemoteServices) -> AsyncLLM:
    """Make an AsyncLLM on the loop it belongs to."""
    return AsyncLLM(services)


def _close(llm: AsyncLLM, loop: EventLoopThread) -> None:
    try:
        loop.run(llm.close())
    finally:
        loop.close()


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    unknown = sorted(set(kwargs) - known)
    if unknown:
        raise TypeError(f"LLM got unknown arguments: {', '.join(unknown)}; EngineArgs lists what there is")


def _refuse_engine_arguments(args: EngineArgs) -> None:
    """Refuse arguments that would be ignored, because the services at the target have their own."""
    own = {"seed", "max_logprobs"}
    changed = [
        field.name for field in dataclasses.fields(args) if field.name not in own and getattr(args, field.name) != field.default
    ]
    if changed:
        raise InvalidRequest(f"With target=, the services decide on {', '.join(changed)}: leave them out.", field=changed[0])


def _as_prompts(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """Return a list of prompts; a list of integers is one prompt."""
    if isinstance(prompts, str | dict):
        return [prompts]
    many: list[Any] = list(prompts)
    if many and all(isinstance(part, int) for part in many):
        return [many]
    return many


def _as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    conversations: list[Any] = list(messages)
    return [conversations] if conversations and isinstance(conversations[0], dict) else conversations


def _check_length(name: str, given: int, prompts: int) -> None:
    if given != prompts:
        raise InvalidRequest(f"The lengths of prompts ({prompts}) and {name} ({given}) must be the same.", field=name)
