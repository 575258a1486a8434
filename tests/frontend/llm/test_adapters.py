"""The adapters of a frontend's settings: loaded at its start, if the engine cores can load them then."""

import pytest

from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.llm.adapters import Adapters
from tetrad.frontend.llm.prompt_adapters import PromptAdapters
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.services.errors import FailedPrecondition, ModelError

NAMED = [LoRARequest("sql", 1, "/sql"), LoRARequest("poems", 2, "/poems")]


class Engines:
    """Engine cores that answer each load with `error`."""

    def __init__(self, error):
        self.error, self.loads = error, []

    def check_targets(self):
        """All admin ports are known."""

    async def load_lora(self, lora):
        self.loads.append(lora.lora_name)
        raise self.error


class NoPrompts(PromptAdapters):
    """No adapter is a prompt adapter."""

    def __init__(self):
        pass

    async def load(self, lora):
        return False


async def test_a_frontend_starts_while_the_engine_sleeps():
    engines = Engines(FailedPrecondition("The engine sleeps.", reason="SLEEPING"))

    await Adapters(engines, NoPrompts()).load_named(NAMED, supports_lora=True)

    assert engines.loads == ["sql", "poems"]


@pytest.mark.parametrize("error", [ModelError("no such matrix"), FailedPrecondition("too large")])
async def test_an_adapter_that_cannot_be_used_ends_the_start(error):
    engines = Engines(error)

    with pytest.raises(FailedPrecondition, match=error.message):
        await Adapters(engines, NoPrompts()).load_named(NAMED, supports_lora=True)

    assert engines.loads == ["sql"]


async def test_a_frontend_that_is_started_again_knows_the_adapters_of_the_engine_cores():
    class EnginesWithAdapters(Engines):
        async def list_loras(self):
            return [LoRARequest("sql", 7, "/loaded/sql"), *NAMED[1:]]

    names = AdapterNames(["sql=/sql"])

    await Adapters(EnginesWithAdapters(None), NoPrompts()).learn(names)

    assert [(lora.lora_name, lora.lora_path) for lora in names] == [("sql", "/sql"), ("poems", "/poems")]


def test_a_name_that_no_directory_can_have_is_unknown(tmp_path):
    """A client may send any name as `model`."""
    names = AdapterNames((), str(tmp_path))

    assert names.get("a" * 256) is None


async def test_a_home_of_no_user_has_no_prompt_adapter():
    assert not await PromptAdapters().load(LoRARequest("sql", 1, "~nobody-here/sql"))
