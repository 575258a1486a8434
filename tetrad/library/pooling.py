"""Pooling methods of LLM: embeddings, classes and scores, with vLLM's names.

A base class of LLM. The methods need a pooling model; for other models they raise InvalidRequest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tetrad.frontend.llm.scoring import PairLimits, Scores, pairs_of, score_pairs
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.pooling import CLASSIFY, EMBED, TOKEN_CLASSIFY, PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.tokenizer.client import PairTemplate
from tetrad.library.arguments import lora_requests_of, pooling_params_of, prompts_of, tokenization_of
from tetrad.library.batch import BatchRunner
from tetrad.library.batch_requests import Adapters, template_of
from tetrad.library.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PooledRequestOutput,
    PoolingOutput,
    ScoringOutput,
    ScoringRequestOutput,
    pooled_answer,
)
from tetrad.library.progress import ProgressBar, UseTqdm
from tetrad.library.running_llm import RunningLLM
from tetrad.services.errors import InvalidRequest

PoolingArgument = PoolingParams | Sequence[PoolingParams] | None


class PoolingMethods:
    """The methods of LLM for pooling models."""

    _running: RunningLLM
    _batches: BatchRunner

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingArgument = None,
        lora_request: Adapters = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return an embedding of each prompt, in the order of the prompts.

        Args:
            prompts: one prompt (text, token ids, TextPrompt or TokensPrompt), or a list of them.
            use_tqdm: whether to show a progress bar on stderr; or a function that makes it, called like tqdm.
            pooling_params: for all prompts, or one per prompt.
            lora_request: adapter for all prompts, or one (or None) per prompt.
            tokenization_kwargs: `add_special_tokens`, `truncate_prompt_tokens`, `truncation_side`.

        Raises:
            InvalidRequest: an invalid prompt or parameter, or the model makes no embeddings.
        """
        found = self._pool(prompts, EMBED, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        return [pooled_answer(each, EmbeddingOutput(each.outputs.values.tolist())) for each in found]

    def classify(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingArgument = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the probability of each class for each prompt. Arguments and errors: see `embed`."""
        found = self._pool(prompts, CLASSIFY, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        return [pooled_answer(each, ClassificationOutput(each.outputs.values.tolist())) for each in found]

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingArgument = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PooledRequestOutput[PoolingOutput]]:
        """Return the result of a task for each prompt. Arguments and errors: see `embed`.

        Args:
            pooling_task: "embed", "classify", "token_embed" or "token_classify". None: the model's first task.
        """
        found = self._pool(prompts, pooling_task, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        return [pooled_answer(each, PoolingOutput(each.outputs.to_list())) for each in found]

    def reward(
        self,
        prompts: PromptType | Sequence[PromptType],
        /,
        *,
        pooling_params: PoolingArgument = None,
        use_tqdm: UseTqdm = True,
        lora_request: Adapters = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PooledRequestOutput[PoolingOutput]]:
        """Return a reward model's answers: one per token, or one per prompt if the model has no answers per token.

        Arguments and errors: see `embed`.
        """
        facts = self._running.frontend.pooling
        task = TOKEN_CLASSIFY if facts is not None and TOKEN_CLASSIFY in facts.tasks else CLASSIFY
        return self.encode(prompts, pooling_params, use_tqdm, lora_request, task, tokenization_kwargs)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Return the scores of pairs of texts: one first text with all second ones, or both lists element by element.

        Args:
            data_1: one text, or as many as in data_2.
            data_2: one text or several.
            use_tqdm, tokenization_kwargs: see `embed`.
            lora_request: adapter for all pairs.
            pooling_params: `use_activation` decides whether a cross-encoder's logits are converted to probabilities,
                `dimensions` on the length of a model's embeddings.
            chat_template: template of a pair for a reranker, with two messages of the roles "query" and "document": Jinja
                source or the path of a file. None: the tokenizer joins the texts.

        Raises:
            TypeError: a text is not a string.
            InvalidRequest: lists of other lengths, or the model cannot score.
        """
        pairs = pairs_of(_texts("data_1", data_1), _texts("data_2", data_2))
        options = tokenization_of(tokenization_kwargs)
        [wanted], adapters = pooling_params_of(pooling_params, 1), lora_requests_of(lora_request, 1)
        facts = self._running.frontend.pooling
        is_cross_encoder = facts is not None and CLASSIFY in facts.tasks
        if is_cross_encoder and options.get("add_special_tokens") is False:
            text = "add_special_tokens cannot be False for a cross-encoder: special tokens join the texts of a pair."
            raise InvalidRequest(text, field="add_special_tokens")
        with ProgressBar(len(pairs), use_tqdm=use_tqdm, what="Scored pairs", shows_speed=False) as bar:

            async def run(prompts: Sequence[PromptType], params: Sequence[PoolingParams]) -> list[PoolingRequestOutput]:
                return await self._batches.pool(prompts, params, options, bar.step, adapters * len(prompts))

            found: Scores = self._running.run(
                score_pairs(
                    self._running.frontend,
                    pairs,
                    run,
                    PairLimits(options.get("truncate_prompt_tokens"), side=options.get("truncation_side")),
                    use_activation=wanted.use_activation,
                    dimensions=wanted.dimensions,
                    template=PairTemplate(template_of(chat_template)),
                )
            )
        # An embedding model has a prompt for each text, not for each pair.
        ids = [output.prompt_token_ids for output in found.outputs] if is_cross_encoder else [[] for _ in pairs]
        return [PooledRequestOutput(str(place), ScoringOutput(value), ids[place]) for place, value in enumerate(found.values)]

    def _pool(
        self,
        prompts: PromptType | Sequence[PromptType],
        task: str | None,
        params: PoolingArgument,
        use_tqdm: UseTqdm,
        lora_request: Adapters,
        tokenization_kwargs: Mapping[str, Any] | None,
    ) -> list[PoolingRequestOutput]:
        every, options = prompts_of(prompts), tokenization_of(tokenization_kwargs)
        each, adapters = _params(params, len(every), task), lora_requests_of(lora_request, len(every))
        with ProgressBar(len(every), use_tqdm=use_tqdm, shows_speed=False) as bar:
            return self._running.run(self._batches.pool(every, each, options, bar.step, adapters))


def _params(given: PoolingArgument, number: int, task: str | None) -> list[PoolingParams]:
    """Return the parameters of each prompt, with the task of the method."""
    return [each.with_task(task) for each in pooling_params_of(given, number)]


def _texts(name: str, given: str | Sequence[str]) -> list[str]:
    every: list[object] = [given] if isinstance(given, str) else list(given)
    for place, text in enumerate(every):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}] must be a string, got {type(text).__name__}")
    return cast(list[str], every)
