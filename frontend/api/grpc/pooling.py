"""Embed, Classify and Score of the public gRPC API: each call becomes one pooling request with all its inputs."""

from collections.abc import Iterable, Sequence

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.llm.scoring import PairLimits, pairs_of, score_pairs
from tetrad.frontend.request.pooling import CLASSIFY, EMBED, PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.tokenizer.client import PairTemplate
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.timers.time_slice import TimeSlice
from tetrad.v1 import inference_pb2

_FIELDS_OF_SCORE = {"text_1": "queries", "text_2": "documents", "max_tokens_per_doc": "max_tokens_per_document"}
"""Names of fields in the errors of score_pairs -> names in ScoreRequest."""


class PoolingCalls:
    """Answers the calls of pooling models.

    Args:
        models: the served models.
        max_inputs: maximum number of inputs, or documents, of a call.
    """

    def __init__(self, models: ModelDirectory, max_inputs: int) -> None:
        self._models, self._max_inputs = models, max_inputs

    async def embed(self, request: inference_pb2.EmbedRequest, request_id: str) -> inference_pb2.EmbedResponse:
        """Return an embedding of each input."""
        params = PoolingParams(
            task=EMBED,
            use_activation=request.use_activation if request.HasField("use_activation") else None,
            dimensions=request.dimensions if request.HasField("dimensions") else None,
        )
        llm = self._found(request.model)
        llm.required_pooling(EMBED, "Embed", Unsupported)
        outputs = await self._run(llm, request, request_id, params)
        embeddings, time_slice = [], TimeSlice()
        for output in outputs:
            await time_slice.check()
            embeddings.append(inference_pb2.Embedding(values=output.outputs.values))
        return inference_pb2.EmbedResponse(embeddings=embeddings, usage=_usage(outputs))

    async def classify(self, request: inference_pb2.ClassifyRequest, request_id: str) -> inference_pb2.ClassifyResponse:
        """Return the probability of each class for each input."""
        params = PoolingParams(
            task=CLASSIFY, use_activation=request.use_activation if request.HasField("use_activation") else None
        )
        llm = self._found(request.model)
        facts = llm.required_pooling(CLASSIFY, "Classify", Unsupported)
        outputs = await self._run(llm, request, request_id, params)
        return inference_pb2.ClassifyResponse(
            classifications=[inference_pb2.Classification(probabilities=output.outputs.values) for output in outputs],
            labels=facts.labels,
            usage=_usage(outputs),
        )

    async def score(self, request: inference_pb2.ScoreRequest, request_id: str) -> inference_pb2.ScoreResponse:
        """Return the scores of queries and documents."""
        llm = self._found(request.model)
        self._check_number(len(request.documents), "documents")
        pairs = pairs_of(request.queries, request.documents)
        limits = PairLimits(
            request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
            request.max_tokens_per_query if request.HasField("max_tokens_per_query") else None,
            request.max_tokens_per_document if request.HasField("max_tokens_per_document") else None,
        )

        async def run(prompts: Sequence[PromptType], params: Sequence[PoolingParams]) -> list[PoolingRequestOutput]:
            return await llm.encode_all(
                prompts,
                params,
                request_id,
                lora_requests=[llm.model_names.lora_of(request.model)] * len(prompts),
                priority=request.priority,
                cache_salt=request.cache_salt,
                truncate_prompt_tokens=limits.prompt,
            )

        activation = request.use_activation if request.HasField("use_activation") else None
        template = PairTemplate(kwargs={"instruction": request.instruction} if request.instruction else {})
        try:
            found = await score_pairs(llm, pairs, run, limits, use_activation=activation, template=template)
        except InvalidRequest as error:
            error.field = _FIELDS_OF_SCORE.get(error.field or "", error.field)
            raise
        return inference_pb2.ScoreResponse(scores=found.values, usage=_usage(found.outputs))

    async def _run(
        self,
        llm: AsyncLLM,
        request: inference_pb2.EmbedRequest | inference_pb2.ClassifyRequest,
        request_id: str,
        params: PoolingParams,
    ) -> list[PoolingRequestOutput]:
        if bool(request.texts) == bool(request.prompts):
            raise InvalidRequest("Exactly one of `texts` and `prompts` must be given.", field="texts")
        inputs: list[PromptType] = list(request.texts)
        inputs = inputs or [TokensPrompt(prompt_token_ids=list(each.ids)) for each in request.prompts]
        field = "texts" if request.texts else "prompts"
        self._check_number(len(inputs), field)
        if request.truncation_side not in ("", "left", "right"):
            text = f"truncation_side must be left or right, got {request.truncation_side[:32]!r}."
            raise InvalidRequest(text, field="truncation_side")
        try:
            return await llm.encode_all(
                inputs,
                [params] * len(inputs),
                request_id,
                lora_requests=[llm.model_names.lora_of(request.model)] * len(inputs),
                priority=request.priority,
                add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else True,
                truncate_prompt_tokens=request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
                truncation_side=request.truncation_side or "right",
                cache_salt=request.cache_salt,
            )
        except InvalidRequest as error:
            error.field = field if error.field == "prompt" else error.field
            raise

    def _found(self, model: str) -> AsyncLLM:
        llm = self._models.find(model)
        llm.model_names.resolve(model)
        return llm

    def _check_number(self, number: int, field: str) -> None:
        if number > self._max_inputs:
            raise InvalidRequest(f"{field} may hold at most {self._max_inputs} inputs, got {number}.", field=field)


def _usage(outputs: Iterable[PoolingRequestOutput]) -> inference_pb2.Usage:
    """Return the usage: the number of tokens of all prompts."""
    found = inference_pb2.Usage()
    for output in outputs:
        found.prompt_tokens += len(output.prompt_token_ids)
        found.cached_tokens += output.num_cached_tokens
    return found
