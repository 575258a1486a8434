"""Scoring: computes the similarity of pairs of texts. Used by the HTTP API, the gRPC API and the library.

A cross-encoder reads both texts of a pair together, joined by its tokenizer or by a chat template. An embedding model embeds
each text once, and the score is the cosine of the two embeddings. A late-interaction model makes one embedding per token, and
the score is the sum of the largest products of these (MaxSim).
"""

import operator
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_tasks import use_without_pooling
from tetrad.frontend.net.side_thread import in_side_thread
from tetrad.frontend.request.pooling import CLASSIFY, EMBED, TOKEN_EMBED, PooledTensor, PoolingParams, PoolingRequestOutput
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.tokenizer.client import NO_TEMPLATE, PairTemplate
from tetrad.services.errors import InvalidRequest

Pairs = Sequence[tuple[str, str]]
Run = Callable[[Sequence[PromptType], Sequence[PoolingParams]], Awaitable[list[PoolingRequestOutput]]]
"""Runs pooling requests, and returns their answers in the order of the prompts."""

_SCORING = (CLASSIFY, EMBED, TOKEN_EMBED)


@dataclass(frozen=True)
class Scores:
    """The scores of pairs, in order, and the answers that they were computed from."""

    values: list[float]
    outputs: list[PoolingRequestOutput]


@dataclass(frozen=True)
class PairLimits:
    """The numbers of tokens that are kept; None: all.

    Attributes:
        prompt: limit of the model's whole prompt; -1: the length of the context. The end of the document is cut off.
        query: limit of the first text of each pair.
        document: limit of the second text of each pair.
        side: the end of a prompt that the caller wants cut off, "left" or "right". None: the right one.
    """

    prompt: int | None = None
    query: int | None = None
    document: int | None = None
    side: str | None = None


NO_LIMITS = PairLimits()


def pairs_of(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs: one first text with every second text, or element by element; InvalidRequest for other lengths."""
    if not first or not second:
        name = "text" if not first else "text_pair"
        raise InvalidRequest(f"At least one {name} element must be given", field="text_1" if not first else "text_2")
    every = list(first) * len(second) if len(first) == 1 else list(first)
    if len(every) != len(second):
        text = f"Input lengths must be either 1:1, 1:N or N:N, got {len(first)}:{len(second)}."
        raise InvalidRequest(text, field="text_1")
    return list(zip(every, second, strict=True))


async def score_pairs(
    llm: AsyncLLM,
    pairs: Pairs,
    run: Run,
    limits: PairLimits = NO_LIMITS,
    *,
    use_activation: bool | None = None,
    dimensions: int | None = None,
    template: PairTemplate = NO_TEMPLATE,
) -> Scores:
    """Return the score of each pair.

    Args:
        llm: the LLM of the model.
        pairs: the pairs of texts; no text is empty.
        run: runs the pooling requests.
        limits: limits of tokens.
        use_activation: for a cross-encoder: convert its logit to a probability. None: as the model's files specify.
        dimensions: for an embedding model: length of the embeddings. None: the model's.
        template: for a cross-encoder: makes its prompts.

    Raises:
        InvalidRequest: the model is generative, or does not have exactly one label; a text, a limit or `dimensions` is invalid.
            Its field is text_1 or text_2 for a text of a cross-encoder's pair.
    """
    task = _scoring_task(llm)
    pairs = await _cut(llm, pairs, limits)
    if task != CLASSIFY:
        if template:
            text = "This model embeds the texts of a pair one by one: instruction and chat_template are for cross-encoders."
            raise InvalidRequest(text, field="chat_template")
        return await _by_embeddings(pairs, run, PoolingParams(task=task, use_activation=True, dimensions=dimensions))
    if limits.side == "left":
        text = "truncation_side must be 'right' for a cross-encoder: the end of the document is cut off, never the query."
        raise InvalidRequest(text, field="truncation_side")
    encoded = await llm.texts.tokenize_pairs(pairs, max_tokens=limits.prompt, template=template)
    prompts = [TokensPrompt(prompt_token_ids=ids) for ids, _ in encoded]
    common = PoolingParams(task=CLASSIFY, use_activation=use_activation, dimensions=dimensions)
    params = [replace(common, token_type_boundary=boundary) for _, boundary in encoded]
    outputs = await run(prompts, params)
    return Scores([output.outputs.values[0] for output in outputs], outputs)


def _scoring_task(llm: AsyncLLM) -> str:
    facts = llm.pooling
    if facts is None:
        text = f"This model does not support the Scoring API: {use_without_pooling(transcribes=llm.transcribes)}"
        raise InvalidRequest(text + llm.shared.tasks.hint(*_SCORING), field="model")
    task = next((each for each in _SCORING if each in facts.tasks), None)
    if task is None:
        text = f"This model does not support the Scoring API. Use {facts.endpoint}."
        raise InvalidRequest(text + llm.shared.tasks.hint(*_SCORING), field="model")
    if task == CLASSIFY and facts.num_labels != 1:
        text = f"Scoring API is only enabled for num_labels == 1; this model has {facts.num_labels}. Use /classify."
        raise InvalidRequest(text, field="model")
    return task


async def _cut(llm: AsyncLLM, pairs: Pairs, limits: PairLimits) -> Pairs:
    """Return the pairs with first texts cut at limits.query and second texts at limits.document."""
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    if limits.query is not None:
        firsts = await llm.texts.cut(firsts, limits.query, field="max_tokens_per_query", text_field="text_1")
    if limits.document is not None:
        seconds = await llm.texts.cut(seconds, limits.document, field="max_tokens_per_doc", text_field="text_2")
    return list(zip(firsts, seconds, strict=True))


async def _by_embeddings(pairs: Pairs, run: Run, params: PoolingParams) -> Scores:
    """Return the scores of an embedding model; each text is embedded once, even if it is in several pairs."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    outputs = await run(texts, [params] * len(texts))
    found = {text: output.outputs for text, output in zip(texts, outputs, strict=True)}
    matrices = [(found[first], found[second]) for first, second in pairs]
    measure = max_sims if params.task == TOKEN_EMBED else _cosines
    return Scores(await in_side_thread(lambda: measure(matrices)), outputs)


def _cosines(pairs: Iterable[tuple[PooledTensor, PooledTensor]]) -> list[float]:
    """Return the dot product of the embeddings of each pair, which are normalised."""
    return [sum(map(operator.mul, first.values, second.values)) for first, second in pairs]


def max_sims(pairs: Iterable[tuple[PooledTensor, PooledTensor]]) -> list[float]:
    """Return the score of each pair: for each row of the query the largest dot product with a row of the document, summed.

    This is ColBERT's MaxSim. The products of a long document take milliseconds: call it in a side thread.

    Args:
        pairs: float32 matrices of query and document, [tokens of the query, width] and [tokens of the document, width].
    """
    import numpy as np  # here, since only models of late interaction need it: it takes 0.1 s to load

    def rows(pooled: PooledTensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        return np.frombuffer(pooled.values, dtype=np.float32).reshape(pooled.shape)

    return [float((rows(query) @ rows(document).T).max(axis=1).sum()) for query, document in pairs]
