"""num_prefill_engines: further engine cores of a local stack, whose role is to compute prompts."""

from dataclasses import replace

import pytest

from tests.tetrad.stack.test_service_children import SETTINGS, children_of  # noqa: F401 - a fixture
from tetrad.library.engine_args import EngineArgs
from tetrad.services.errors import InvalidRequest


def roles_of(children):
    return {each.name: each.environment.get("TETRAD_ENGINE_CORE_KV_ROLE") for each in children.engine_cores()}


def test_the_first_engine_cores_generate_and_the_further_ones_compute_prompts(children_of):  # noqa: F811
    children = children_of(settings=replace(SETTINGS, num_prefill_engines=1))

    assert roles_of(children) == {"engine-core": "consumer", "engine-core-2": "consumer", "engine-core-3": "producer"}
    assert [each.name for each in children.workers()] == ["worker", "worker-2", "worker-3"]
    assert len(children.frontend_settings.engine_targets) == 3


def test_without_them_each_engine_core_has_the_role_of_its_settings(children_of):  # noqa: F811
    settings = replace(SETTINGS, engine_core=SETTINGS.engine_core.model_copy(update={"kv_role": "both"}))

    assert set(roles_of(children_of(settings=settings)).values()) == {"both"}
    assert set(roles_of(children_of()).values()) <= {"none", None}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tensor_parallel_size": 2}, "num_prefill_engines needs a model on one worker"),
        ({"enable_expert_parallel": True}, "num_prefill_engines needs the experts on each worker"),
        ({"enable_prefix_caching": False}, "num_prefill_engines needs enable_prefix_caching"),
        (
            {"speculative_config": '{"method": "draft_model", "model": "/d", "num_speculative_tokens": 2}'},
            "num_prefill_engines needs no drafter, .* has method draft_model",
        ),
    ],
)
def test_what_moves_no_blocks_is_refused(changes, text):
    core = {name: value for name, value in changes.items() if not name.endswith("_size")}
    sizes = {name: value for name, value in changes.items() if name not in core}

    with pytest.raises(InvalidRequest, match=text):
        replace(SETTINGS, num_prefill_engines=1, engine_core=SETTINGS.engine_core.model_copy(update=core), **sizes)


@pytest.mark.parametrize("value", [-1, 65, True, "1"])
def test_a_wrong_number_is_refused(value):
    with pytest.raises(InvalidRequest, match="num_prefill_engines must be between 0 and 64"):
        EngineArgs(device="sim", num_prefill_engines=value)
