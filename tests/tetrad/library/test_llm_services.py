"""Running services: the engine cores that a program operates through LLM(target=...)."""

import pytest

from tetrad import LLM
from tetrad.library.llm_services import RemoteServices
from tetrad.services.errors import InvalidRequest

TARGET = "tokenizer.example:50051,engine.example:50052"


async def test_addresses_alone_operate_no_engine_core():
    """The default admin port of this machine may be another engine's, which `sleep` would put to sleep."""
    settings = await RemoteServices(TARGET).start()

    assert settings.engine_targets == ("engine.example:50052",)
    assert settings.engine_admin_targets == ()


async def test_the_admin_ports_of_a_target_are_given_with_it():
    settings = await RemoteServices(TARGET, "engine.example:50054, 10.0.0.7:50054").start()

    assert settings.engine_admin_targets == ("engine.example:50054", "10.0.0.7:50054")


def test_an_admin_target_without_a_target_is_refused():
    with pytest.raises(InvalidRequest, match="admin_target belongs to target="):
        LLM(admin_target="engine.example:50054")
