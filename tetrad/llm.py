"""LLM: generate from a Python program that blocks; vLLM's class of the same name.

A thin bridge: arguments become EngineArgs, calls become batches on the event loop of one background thread. Knows nothing of
services or processes. Not for several threads at once.
"""

import dataclasses
import functools
import random
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tetrad.arguments import (
    Conversation,
    check_content_format,
    conversations_of,
    lora_requests_of,
    priorities_of,
    prompts_of,
    sampling_params_of,
    tokenization_of,
    tools_of,
)
from tetrad.async_llm import AsyncLLM
from tetrad.batch import BatchItem, BatchRunner
from tetrad.engine_args import EngineArgs
from tetrad.event_loop_thread import EventLoopThread
from tetrad.frontend.beam_search import BeamSearchOutput, BeamSearchParams
from tetrad.frontend.engine_admin_client import PauseMode
from tetrad.frontend.outputs import LoRARequest, RequestOutput
from tetrad.frontend.prompts import PromptType
from tetrad.frontend.sampling_params import SamplingParams
from tetrad.llm_services import LocalServices, RemoteServices, Services
from tetrad.metrics_reader import Metric, snapshot
from tetrad.progress import ProgressBar, UseTqdm
from tetrad.services.errors import InvalidRequest
from tetrad.services.model_files import DEFAULT_MODEL
from tetrad.tokenizer import Tokenizer

# vLLM's LLM class computes larger steps than its server: nobody waits for a single token here.
_OFFLINE_MAX_NUM_BATCHED_TOKENS = 8192


class LLM:
    """A language model and the services it needs, started with it and ended with it.

    Args:
        model: a built-in name, a directory, a .gguf file or a Hugging Face id.
        target: services that run already, instead of starting any: "TOKENIZER,ENGINE[,ENGINE...]", or the directory of a
            local stack. The engine arguments are those services' own then, and must be left out.
        admin_target: admin ports of the target's engine cores, "HOST:PORT[,HOST:PORT...]", which `sleep`, `wake_up`,
            `reset_prefix_cache` and profiles need; a stack's directory has its own. None: these raise FailedPrecondition.
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
        admin_target: str | None = None,
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
        swap_space: float = 0,
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
        if admin_target is not None and target is None:
            raise InvalidRequest("admin_target belongs to target=; a stack of its own needs none.", field="admin_target")
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
            if args.enable_chunked_prefill is not False:
                args.max_num_batched_tokens = args.max_num_batched_tokens or _OFFLINE_MAX_NUM_BATCHED_TOKENS
        else:
            _refuse_engine_arguments(args)
        self._seeds = None if seed is None else random.Random(seed)
        self._loop = EventLoopThread()
        if target is None:
            services: Services = LocalServices(args)
        else:
            services = RemoteServices(
                target, admin_target, max_logprobs=args.max_logprobs, otlp_endpoint=args.otlp_traces_endpoint
            )
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
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return one finished output per prompt, in the prompts' order.

        Args:
            prompts: one prompt (text, token ids, TextPrompt or TokensPrompt), or a list of them.
            sampling_params: for all prompts, or one per prompt; by default what the model's authors recommend.
            use_tqdm: show a progress bar on stderr; or what makes it, called as tqdm is.
            lora_request: adapter for all prompts, or one (or None) per prompt.
            priority: one number per prompt; larger is more urgent.
            tokenization_kwargs: `add_special_tokens`, `truncate_prompt_tokens`, `truncation_side`.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidRequest: a bad prompt or parameter, or lists of different lengths. Nothing is generated then.
        """
        items = self._items(prompts, sampling_params, lora_request, priority, tokenization_kwargs)
        with ProgressBar(len(items), use_tqdm=use_tqdm) as bar:
            return self._loop.run(self._batches.run(items, bar.add))

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Start requests and return their ids at once; `wait_for_completion` returns what they generate.

        Arguments and errors are those of `generate`.
        """
        items = self._items(prompts, sampling_params, lora_request, priority, tokenization_kwargs)
        with ProgressBar(len(items), use_tqdm=use_tqdm, what="Adding requests", shows_speed=False) as bar:
            return self._loop.run(self._batches.enqueue(items, bar.step))

    def wait_for_completion(self, *, use_tqdm: UseTqdm = True) -> list[RequestOutput]:
        """Return one finished output per request that was enqueued, in that order; none if there is none.

        Raises:
            TetradError: of the first request that fails; the others are aborted.
        """
        with ProgressBar(self._batches.num_enqueued, use_tqdm=use_tqdm) as bar:
            return self._loop.run(self._batches.collect(bar.add))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return the next turn of one conversation, or of each of a list of them.

        Args:
            messages: OpenAI's messages ({"role", "content"}), or a list of such lists.
            sampling_params: for all conversations, or one per conversation; by default what the model's authors recommend.
            use_tqdm: as in `generate`.
            lora_request: as in `generate`.
            chat_template: instead of the model's.
            chat_template_content_format: "auto" or "string": text parts are joined to one string.
            add_generation_prompt: end the prompt where the assistant begins.
            continue_final_message: let the model continue the last message; needs `add_generation_prompt=False`.
            tools: OpenAI's tools, for the template. Calls come as the model writes them: in the text.
            chat_template_kwargs: further variables for the template.
            tokenization_kwargs: `add_special_tokens` (the template's own by default), `truncate_prompt_tokens`,
                `truncation_side`.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidRequest: bad messages or parameters, or what the template refuses.
        """
        conversations = conversations_of(messages)
        check_content_format(chat_template_content_format)
        options = tokenization_of(tokenization_kwargs)
        params = self._params(sampling_params, len(conversations))
        prompts = self._loop.run(
            self._batches.render_chats(
                [
                    functools.partial(
                        self._frontend.texts.encode_chat,
                        conversation,
                        tools=tools_of(tools),
                        chat_template=chat_template,
                        chat_template_kwargs=chat_template_kwargs,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message,
                        add_special_tokens=options.get("add_special_tokens", False),
                    )
                    for conversation in conversations
                ]
            )
        )
        return self.generate(
            prompts, params, use_tqdm=use_tqdm, lora_request=lora_request, tokenization_kwargs=tokenization_kwargs
        )

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the `params.beam_width` best continuations of each prompt, in the prompts' order.

        Beams share what they have in common through the prefix cache, whose unit is a KV block: `LLM(block_size=1)` searches
        fastest, a token per beam and step.

        Args:
            prompts: as in `generate`.
            params: how to search.
            lora_request: as in `generate`.
            use_tqdm: show a progress bar on stderr; or what makes it, called as tqdm is.
            concurrency_limit: prompts that are searched at the same time; all by default.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidRequest: a bad prompt, or more beams than the vocabulary has tokens for.
        """
        every = prompts_of(prompts)
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be BeamSearchParams, got {type(params).__name__}")
        if concurrency_limit is not None and concurrency_limit < 1:
            raise InvalidRequest(f"concurrency_limit must be at least 1, got {concurrency_limit}.", field="concurrency_limit")
        adapters = lora_requests_of(lora_request, len(every))
        with ProgressBar(len(every), use_tqdm=use_tqdm, what="Beam search", shows_speed=False) as bar:
            return self._loop.run(
                self._batches.beam_search(every, params, adapters, concurrency_limit=concurrency_limit, on_found=bar.step)
            )

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return Tokenizer(self._frontend, self._loop)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what `generate` samples with if nothing is given."""
        return self._frontend.get_default_sampling_params()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes, and return whether that could be done: it cannot while requests run.

        Args:
            reset_running_requests: preempt what runs, so that it can; such requests go on afterwards.
        """
        return self._loop.run(self._frontend.engine_admin.reset_prefix_cache(reset_running_requests=reset_running_requests))

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
        self._loop.run(self._frontend.engine_admin.sleep(level, mode))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Undo `sleep`; weights that were dropped are loaded again.

        Args:
            tags: "weights", then "kv_cache", for a caller who needs the memory between the two; by default all.
        """
        self._loop.run(self._frontend.engine_admin.wake_up(tags or ()))

    def is_sleeping(self) -> bool:
        """Return whether it sleeps, at whatever level."""
        return self._loop.run(self._frontend.engine_admin.state()).is_sleeping

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record what the engine core and its worker do, call by call, until `stop_profile`.

        Args:
            profile_prefix: first part of the files' names.
        """
        self._loop.run(self._frontend.engine_admin.start_profile(profile_prefix or ""))

    def stop_profile(self) -> list[str]:
        """Write what was recorded and return the files, for Perfetto, as those services see them."""
        return self._loop.run(self._frontend.engine_admin.stop_profile())

    def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms with their present values; the HTTP API's /metrics has the same names."""
        return snapshot(self._frontend.metrics.registry)

    def close(self) -> None:
        """End the services that were started here, within 5 s; this happens by itself when the program ends."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _items(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: SamplingParams | Sequence[SamplingParams] | None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        priority: Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
    ) -> list[BatchItem]:
        every = prompts_of(prompts)
        own = self._params(params, len(every))
        adapters = lora_requests_of(lora_request, len(every))
        numbers = priorities_of(priority, len(every))
        options = tokenization_of(tokenization_kwargs)
        return [
            BatchItem(prompt, self._seeded(each), number, adapter, options)
            for prompt, each, number, adapter in zip(every, own, numbers, adapters, strict=True)
        ]

    def _params(self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
        return sampling_params_of(self.get_default_sampling_params() if params is None else params, num_prompts)

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        if self._seeds is None or params.seed is not None:
            return params
        return dataclasses.replace(params, seed=self._seeds.getrandbits(62))


async def _make(services: Services) -> AsyncLLM:
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
    own = {"seed", "max_logprobs", "otlp_traces_endpoint"}
    changed = [
        field.name for field in dataclasses.fields(args) if field.name not in own and getattr(args, field.name) != field.default
    ]
    if changed:
        raise InvalidRequest(f"With target=, the services decide on {', '.join(changed)}: leave them out.", field=changed[0])
