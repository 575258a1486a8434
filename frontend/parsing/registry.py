"""Registry: lists all formats, and chooses one by name or by a model's chat template."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tetrad.frontend.parsing.elements.interface import ReasoningFormat, ToolFormat
from tetrad.frontend.parsing.reasoning.append_think import MINIMAX_M2_APPEND_THINK
from tetrad.frontend.parsing.reasoning.gpt_oss import GPT_OSS
from tetrad.frontend.parsing.reasoning.granite import GRANITE
from tetrad.frontend.parsing.reasoning.inkling import INKLING
from tetrad.frontend.parsing.reasoning.think_formats import THINK_FORMATS
from tetrad.frontend.parsing.tools.apertus import ApertusFormat
from tetrad.frontend.parsing.tools.cohere import CohereCommand3Format
from tetrad.frontend.parsing.tools.deepseek import DeepSeekV3Format, DeepSeekV31Format
from tetrad.frontend.parsing.tools.gemma import FunctionGemmaFormat, Gemma4Format
from tetrad.frontend.parsing.tools.glm45 import Glm45Format, HyV3Format, SolarOpen2Format
from tetrad.frontend.parsing.tools.granite import GraniteFormat
from tetrad.frontend.parsing.tools.hermes import (
    GigaChat3Format,
    Granite20bFormat,
    HermesFormat,
    HunyuanFormat,
    InternlmFormat,
    JambaFormat,
    LongcatFormat,
)
from tetrad.frontend.parsing.tools.inkling import InklingFormat
from tetrad.frontend.parsing.tools.invoke import (
    DeepSeekV4Format,
    DeepSeekV32Format,
    MiniCpm5Format,
    MinimaxM2Format,
    Step3Format,
)
from tetrad.frontend.parsing.tools.kimi_k2 import KimiK2Format
from tetrad.frontend.parsing.tools.kimi_k3 import KimiK3Format
from tetrad.frontend.parsing.tools.llama3_json import Llama3JsonFormat
from tetrad.frontend.parsing.tools.minimax_m3 import MinimaxM3Format
from tetrad.frontend.parsing.tools.mistral import MistralFormat
from tetrad.frontend.parsing.tools.openai import OpenAIFormat
from tetrad.frontend.parsing.tools.phi4 import Phi4Format
from tetrad.frontend.parsing.tools.pythonic import Lfm2Format, Llama4PythonicFormat, Olmo3Format, PythonicFormat
from tetrad.frontend.parsing.tools.qwen3_coder import Qwen3CoderFormat, Qwen3XmlFormat, SeedOssFormat
from tetrad.frontend.parsing.tools.xlam import XlamFormat
from tetrad.services.errors import InvalidRequest


class _Named(Protocol):
    name: str

    def recognises(self, chat_template: str) -> bool: ...


Format = TypeVar("Format", bound=_Named)

# In the order in which templates are tested: the more specific first.
TOOL_FORMATS: tuple[ToolFormat, ...] = (
    OpenAIFormat(),
    InklingFormat(),
    KimiK2Format(),
    KimiK3Format(),
    CohereCommand3Format(),
    ApertusFormat(),
    SolarOpen2Format(),
    XlamFormat(),
    DeepSeekV4Format(),
    DeepSeekV32Format(),
    DeepSeekV31Format(),
    DeepSeekV3Format(),
    MinimaxM2Format(),
    MinimaxM3Format(),
    MiniCpm5Format(),
    Step3Format(),
    Gemma4Format(),
    FunctionGemmaFormat(),
    MistralFormat(),
    Llama4PythonicFormat(),
    Lfm2Format(),
    Olmo3Format(),
    PythonicFormat(),
    Llama3JsonFormat(),
    Phi4Format(),
    GraniteFormat(),
    HyV3Format(),
    Glm45Format(),
    SeedOssFormat(),
    Qwen3CoderFormat(),
    Qwen3XmlFormat(),
    LongcatFormat(),
    InternlmFormat(),
    GigaChat3Format(),
    Granite20bFormat(),
    HunyuanFormat(),
    JambaFormat(),
    HermesFormat(),
)
REASONING_FORMATS: tuple[ReasoningFormat, ...] = (GPT_OSS, INKLING, GRANITE, MINIMAX_M2_APPEND_THINK, *THINK_FORMATS)

# Further names that vLLM has -> the formats, of tool calls and of reasoning, that they stand for.
ALIASES: dict[str, tuple[str, ...]] = {
    "cohere_command4": ("cohere_command3",),
    "deepseek_v3": ("think",),
    "deepseek_v4": ("think",),
    "ernie45": ("hermes",),
    "glm47": ("glm45",),
    "granite4": ("hermes",),
    "holo2": ("think",),
    "llama4_json": ("llama3_json",),
    "mimo": ("qwen3_coder", "qwen3"),
    "nemotron_v3": ("think",),
    "olmo3": ("think",),
    "openai_gptoss": ("gpt_oss",),
    "poolside_v1": ("glm45", "think"),
    "step3p5": ("qwen3_coder", "think"),
}


def choose_format(formats: Sequence[Format], name: str, chat_template: str) -> Format | None:
    """Return the format with this name or alias; for "auto" the first that recognises the template, if any. None for "none".

    Of several formats with one name, which models of one family use, the template chooses.

    Raises:
        InvalidRequest: there is no format with this name.
    """
    if name == "none":
        return None
    if name == "auto":
        return next((each for each in formats if each.recognises(chat_template)), None)
    # A format's own name wins: it may be an alias of another format in the other list.
    by_name = {each.name: each for each in reversed(formats)}
    meant = next((each for each in (name, *ALIASES.get(name, ())) if each in by_name), None)
    if meant is None:
        aliases = [alias for alias, meant in ALIASES.items() if alias not in by_name and not by_name.keys().isdisjoint(meant)]
        names = ", ".join(["auto", "none", *by_name, *aliases])
        raise InvalidRequest(f"There is no parser {name!r}. Known: {names}.")
    return next((each for each in formats if each.name == meant and each.recognises(chat_template)), by_name[meant])
