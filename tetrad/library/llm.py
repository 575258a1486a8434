"""LLM: generates for blocking Python programs; vLLM's class of the same name.

A thin bridge: arguments become EngineArgs, calls become batches on the event loop of a background thread. Knows nothing of
services or processes. For one thread at a time. operations.py has its methods that control the engine; llm_arguments.py its
arguments.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tetrad.drop_in.missing_methods import MissingFromLLM
from tetrad.drop_in.shared_verdicts import PROMPT_ADAPTER
from tetrad.frontend.llm.beam_search import BeamSearchOutput, BeamSearchParams
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.library.arguments import (
    Conversation,
    checked_beam_params,
    conversations_of,
    guided_by,
    lora_requests_of,
    prompts_of,
)
from tetrad.library.batch import BatchRunner
from tetrad.library.batch_requests import Adapters, BatchRequests, Params, Priorities, Prompts, template_of
from tetrad.library.engine_args import EngineArgs
from tetrad.library.llm_arguments import engine_arguments, make_llm
from tetrad.library.llm_engine import LLMEngine
from tetrad.library.operations import Operations
from tetrad.library.pooling import PoolingMethods
from tetrad.library.progress import ProgressBar, UseTqdm
from tetrad.library.request_counter import RequestCounter
from tetrad.library.running_llm import RunningLLM
from tetrad.library.weight_operations import WeightOperations
from tetrad.services.errors import InvalidRequest
from tetrad.services.hub.model_files import DEFAULT_MODEL


class LLM(Operations, WeightOperations, PoolingMethods, MissingFromLLM):
    """A language model with its services, which start and end with it.

    Args:
        model: a built-in name, a directory, a .gguf file or a Hugging Face id.
        positional: further arguments in the order of older versions of vLLM: tokenizer, tokenizer_mode, ...
        target: running services to use instead of starting any: "TOKENIZER,ENGINE[,ENGINE...]", or the directory of a local
            stack. These services have their own engine arguments, so none may be given.
        admin_target: admin ports of the target's engine cores, "HOST:PORT[,HOST:PORT...]", which `sleep`, `wake_up`,
            `reset_prefix_cache` and profiles need; a stack's directory has its own. None: these raise FailedPrecondition.
        chat_template: template for `chat`, instead of the model's: Jinja source or the path of a file.
        seed: makes the sampling of requests without a seed repeatable.
        arguments: further EngineArgs.

    Raises:
        TypeError: an unknown argument.
        InvalidRequest: a value that is not supported.
        NotFound, FailedPrecondition: the model cannot be served.
        Unavailable: the services did not start, or are not reachable.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *positional: Any,
        target: str | None = None,
        admin_target: str | None = None,
        chat_template: Path | str | None = None,
        **arguments: Any,
    ) -> None:
        args = engine_arguments(model, positional, arguments)
        self._args = args if target is None else None
        template = template_of(chat_template)
        self._running = RunningLLM(make_llm(args, target, admin_target))
        self._batches = BatchRunner(self._running.frontend)
        self._requests = BatchRequests(self._running, self._batches, seed=args.seed, chat_template=template)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Return an LLM with its own services. Errors: see the constructor."""
        return cls(**{field.name: getattr(engine_args, field.name) for field in dataclasses.fields(EngineArgs)})

    @functools.cached_property
    def llm_engine(self) -> LLMEngine:
        """The engine, for programs that read its configuration; its `step` returns only requests that were added to it."""
        return LLMEngine(self._running, self._args)

    @property
    def request_counter(self) -> RequestCounter:
        """The counter that makes the ids of requests."""
        return self._batches.numbers

    def generate(
        self,
        prompts: Prompts = None,
        sampling_params: Params = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        prompt_adapter_request: None = None,
        guided_options_request: Mapping[str, Any] | None = None,
        priority: Priorities = None,
        *,
        inputs: Prompts = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return one finished output per prompt, in the prompts' order.

        Args:
            prompts: one prompt (text, token ids, TextPrompt or TokensPrompt), or a list of them. The images of a prompt are PIL
                images, arrays [height, width, channels] of uint8 or the bytes of files.
            sampling_params: for all prompts, or one per prompt; None: the values that the model's authors recommend.
            prompt_token_ids: for older programs: ids of one prompt or of each; `prompts` are their texts, if any.
            use_tqdm: whether to show a progress bar on stderr; or a function that makes it, called like tqdm.
            lora_request: adapter for all prompts, or one (or None) per prompt.
            prompt_adapter_request: for older programs, must be None: a prompt adapter is a `lora_request`, too.
            guided_options_request: for older programs: {"guided_json": ...} and similar options.
            priority: for all prompts, or one number per prompt; see docs/requests.md.
            inputs: older name of `prompts`.
            tokenization_kwargs: `add_special_tokens`, `truncate_prompt_tokens`, `truncation_side`.
            mm_processor_kwargs: settings of the model's image processor, for the prompts with images.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidRequest: an invalid prompt or parameter, or lists of different lengths. Then no request is started.
        """
        PROMPT_ADAPTER.check("prompt_adapter_request", prompt_adapter_request)
        every = prompts_of(inputs if prompts is None else prompts, prompt_token_ids)
        params = guided_by(guided_options_request, self._requests.params_of(sampling_params, len(every)))
        items = self._requests.of_prompts(
            every,
            params,
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        with ProgressBar(len(items), use_tqdm=use_tqdm) as bar:
            return self._running.run(self._batches.run(items, bar.add))

    def enqueue(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        lora_request: Adapters = None,
        priority: Priorities = None,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Start requests and return their ids at once; `wait_for_completion` returns their outputs.

        Arguments and errors are those of `generate`.
        """
        every = prompts_of(prompts)
        params = self._requests.params_of(sampling_params, len(every))
        items = self._requests.of_prompts(
            every,
            params,
            lora_request=lora_request,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        with ProgressBar(len(items), use_tqdm=use_tqdm, what="Adding requests", shows_speed=False) as bar:
            return self._running.run(self._batches.enqueue(items, bar.step))

    def wait_for_completion(
        self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: UseTqdm = True
    ) -> list[RequestOutput]:
        """Return one finished output per enqueued request, in that order.

        Args:
            output_type: the expected type of the outputs, which is RequestOutput.
            use_tqdm: see `generate`.

        Raises:
            TypeError: another type is expected.
            TetradError: the error of the first request that fails; the others are aborted.
        """
        if output_type is not None and not issubclass(RequestOutput, output_type):
            raise TypeError(f"Outputs are RequestOutput, not {output_type!r}.")
        with ProgressBar(self._batches.num_enqueued, use_tqdm=use_tqdm) as bar:
            return self._running.run(self._batches.collect(bar.add))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        priority: Priorities = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Return the next turn of one conversation, or of each of a list of them.

        Args:
            messages: OpenAI's messages ({"role", "content"}), or a list of such lists. Parts of a content are texts and images:
                of type image_url, or of type image_pil with a PIL image or an array.
            sampling_params: for all conversations, or one per conversation; None: the values the model's authors recommend.
            use_tqdm: see `generate`.
            lora_request: see `generate`.
            priority: see `generate`.
            chat_template: replaces the model's template.
            chat_template_content_format: "auto" or "string": text parts are joined to one string; "openai": the template gets
                lists of parts.
            add_generation_prompt: end the prompt with the start of an assistant's turn.
            continue_final_message: let the model continue the last message; needs `add_generation_prompt=False`.
            tools: tools in OpenAI's form, for the template. Calls stay in the text, in the model's format.
            chat_template_kwargs: further variables for the template.
            tokenization_kwargs: `add_special_tokens` (by default only those of the template), `truncate_prompt_tokens`,
                `truncation_side`.
            mm_processor_kwargs: settings of the model's image processor, for the conversations with images.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidRequest: invalid messages or parameters, or the template refuses the messages.
        """
        conversations = conversations_of(messages)
        items = self._requests.of_conversations(
            conversations,
            self._requests.params_of(sampling_params, len(conversations)),
            chat_template=chat_template,
            content_format=chat_template_content_format,
            tools=tools,
            tokenization_kwargs=tokenization_kwargs,
            lora_request=lora_request,
            priority=priority,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        with ProgressBar(len(items), use_tqdm=use_tqdm) as bar:
            return self._running.run(self._batches.run(items, bar.add))

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        priority: Priorities = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Start turns and return their ids at once, like `enqueue`. Arguments and errors are those of `chat`."""
        conversations = conversations_of(messages)
        items = self._requests.of_conversations(
            conversations,
            self._requests.params_of(sampling_params, len(conversations)),
            chat_template=chat_template,
            content_format=chat_template_content_format,
            tools=tools,
            tokenization_kwargs=tokenization_kwargs,
            lora_request=lora_request,
            priority=priority,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        with ProgressBar(len(items), use_tqdm=use_tqdm, what="Adding requests", shows_speed=False) as bar:
            return self._running.run(self._batches.enqueue(items, bar.step))

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: Adapters = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the `params.beam_width` best continuations of each prompt, in the prompts' order.

        Beams share common tokens through the prefix cache, whose unit is a KV block: with `LLM(block_size=1)` the search is
        fastest, because each step computes one token per beam.

        Args:
            prompts: see `generate`.
            params: the parameters of the search.
            lora_request: see `generate`.
            use_tqdm: see `generate`.
            concurrency_limit: maximum number of prompts that are searched at the same time; None: all.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidRequest: an invalid prompt, or more beams than the vocabulary allows.
        """
        every, params = prompts_of(prompts), checked_beam_params(params)
        if concurrency_limit is not None and concurrency_limit < 1:
            raise InvalidRequest(f"concurrency_limit must be at least 1, got {concurrency_limit}.", field="concurrency_limit")
        adapters = lora_requests_of(lora_request, len(every))
        with ProgressBar(len(every), use_tqdm=use_tqdm, what="Beam search", shows_speed=False) as bar:
            return self._running.run(
                self._batches.beam_search(every, params, adapters, concurrency_limit=concurrency_limit, on_found=bar.step)
            )

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that `generate` uses if none are given."""
        return self._running.frontend.get_default_sampling_params()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
