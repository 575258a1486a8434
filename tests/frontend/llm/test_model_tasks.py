"""ModelTasks: the error for a task that a model does not have names the models that have it."""

from dataclasses import dataclass

import pytest

from tetrad.frontend.llm.model_tasks import GENERATE, TRANSCRIBE, ModelTasks
from tetrad.frontend.request.pooling import CLASSIFY, EMBED, TOKEN_EMBED, PoolingFacts


@dataclass
class Model:
    all_names: list[str]
    pooling: PoolingFacts | None = None
    started: bool = True
    transcribes: bool = False


def pooling(*tasks, generates=False):
    return PoolingFacts(tasks, 8, False, (), (), 0, False, generates=generates)


@pytest.mark.parametrize(
    ("tasks", "hint"),
    [
        ((GENERATE,), " The models `writer`, `both` of this server do that."),
        ((EMBED,), " The model `reader` of this server does that."),
        ((EMBED, TOKEN_EMBED), " The models `reader`, `both` of this server do that."),
        ((CLASSIFY,), ""),
        ((TRANSCRIBE,), " The model `hearer` of this server does that."),
    ],
)
def test_a_hint_names_the_models_that_have_one_of_the_tasks(tasks, hint):
    found = ModelTasks()
    found.open(
        [
            Model(["writer", "alias"]),
            Model(["reader"], pooling(EMBED)),
            Model(["both"], pooling(TOKEN_EMBED, generates=True)),
            Model(["hearer"], transcribes=True),
            Model(["late"], pooling(CLASSIFY), started=False),
        ]
    )

    assert found.hint(*tasks) == hint


def test_a_model_that_is_alone_gets_no_hint():
    assert ModelTasks().hint(GENERATE) == ""
