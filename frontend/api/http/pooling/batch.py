"""Batch: runs all prompts of one HTTP request to a pooling route, and encodes their answers."""

import asyncio
import base64
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import Request

from tetrad.frontend.api.http.pooling.bodies import InputBody, Inputs, PoolingBody
from tetrad.frontend.api.http.requests.named import llm_of, request_id_of
from tetrad.frontend.api.http.schemas.objects import Usage, encode
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.pooling import PooledTensor, PoolingFacts, PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.services.errors import InvalidRequest

Item = TypeVar("Item")

NO_NAMES: Mapping[str, str] = {}

_VALUES_AT_ONCE = 32_768
"""Number of values that are encoded as JSON without a pause: about 4 ms."""


@dataclass(frozen=True)
class Job:
    """One HTTP request to a pooling route.

    Attributes:
        llm: runs the request.
        body: the body of the request.
        request_id: the request's id with the route's prefix.
        model: the model name in the answer.
        created: time of the request in Unix seconds.
    """

    llm: AsyncLLM
    body: PoolingBody
    request_id: str
    model: str
    created: int

    @classmethod
    def of(cls, request: Request, body: PoolingBody, prefix: str) -> "Job":
        """Return the job of a request; NotFound for a model that is not served."""
        llm = llm_of(request, body.model)
        model = llm.model_names.resolve(body.model)
        return cls(llm, body, f"{prefix}-{request_id_of(request, body.request_id)}", model, int(time.time()))

    def facts(self, task: str, api: str) -> PoolingFacts:
        """Return the facts of the pooling model; InvalidRequest if it does not have the task of this API."""
        return self.llm.required_pooling(task, f"{api} API")

    async def run(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[PoolingParams],
        *,
        add_special_tokens: bool = True,
        names: Mapping[str, str] = NO_NAMES,
    ) -> list[PoolingRequestOutput]:
        """Return the answers in the order of the prompts.

        Args:
            prompts: the prompts.
            params: the parameters of each prompt.
            add_special_tokens: let the tokenizer add [CLS] and the like to texts.
            names: the names of fields in the body, by those of AsyncLLM.encode_all, for errors.
        """
        try:
            return await self.llm.encode_all(
                prompts,
                params,
                self.request_id,
                lora_requests=[self.llm.model_names.lora_of(self.model)] * len(prompts),
                priority=self.body.priority,
                add_special_tokens=add_special_tokens,
                truncate_prompt_tokens=self.body.truncate_prompt_tokens,
                truncation_side=self.body.truncation_side or "right",
                cache_salt=self.body.cache_salt or "",
            )
        except InvalidRequest as error:
            error.field = names.get(error.field or "", error.field)
            raise


async def conversations_of(llm: AsyncLLM, body: InputBody, most: int) -> list[PromptType]:
    """Return the prompts of a request's conversations; InvalidRequest if there are none or too many, or one is invalid."""
    given = body.messages or []
    every = given if given and isinstance(given[0], list) else [given] if given else []
    check_number(len(every), most, "messages")
    prompts = await llm.texts.encode_chats(
        [[message.model_dump(exclude_unset=True) for message in conversation] for conversation in every],
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens or False,
        is_truncated=body.truncate_prompt_tokens is not None,
    )
    return list(prompts)


def check_number(number: int, most: int, field: str) -> None:
    """Raise InvalidRequest if there are no prompts, or more than `most`."""
    if not number:
        raise InvalidRequest("You must pass at least one prompt.", field=field)
    if number > most:
        raise InvalidRequest(f"{field} may hold at most {most} prompts, got {number}.", field=field)


def prompts_of(given: Inputs, most: int) -> list[PromptType]:
    """Return the prompts of a request's inputs; InvalidRequest if there are none or too many, or one is empty."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [TokensPrompt(prompt_token_ids=msgspec.convert(given, list[int]))]
    check_number(len(given), most, "input")
    return [
        each if isinstance(each, str) else TokensPrompt(prompt_token_ids=msgspec.convert(each, list[int])) for each in given
    ]


async def in_slices(outputs: Sequence[PoolingRequestOutput], item: Callable[[int, PoolingRequestOutput], Item]) -> list[Item]:
    """Return the items of an answer, encoded as JSON; other tasks run between slices.

    Args:
        outputs: the outputs of the request.
        item: returns the item of an index and its output.
    """
    encoded: list[msgspec.Raw] = []
    num_values = 0
    for place, output in enumerate(outputs):
        encoded.append(msgspec.Raw(encode(item(place, output))))
        num_values += len(output.outputs.values)
        if num_values > _VALUES_AT_ONCE:
            num_values = 0
            await asyncio.sleep(0)
    return cast(list[Item], encoded)  # msgspec writes raw JSON in place of any value


def usage_of(outputs: Sequence[PoolingRequestOutput]) -> Usage:
    """Return the usage: the number of tokens of all prompts."""
    number = sum(len(output.prompt_token_ids) for output in outputs)
    return Usage(number, 0, number)


def shown(pooled: PooledTensor, encoding_format: str | None) -> list[Any] | str:
    """Return values for JSON: numbers, or base64 of float32 values, little-endian."""
    return base64_of(pooled.values) if encoding_format == "base64" else pooled.to_list()


def base64_of(values: "array[float]") -> str:
    """Return base64 of float32 values, little-endian."""
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
