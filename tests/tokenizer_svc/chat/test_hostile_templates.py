"""Hostile chat templates: bombs, loops, escapes; each fails its own request, and others are rendered meanwhile."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from tetrad.services.errors import InvalidRequest, Overloaded
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer, Conversation
from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer, SpecialTokens

MESSAGES = json.dumps([{"role": "user", "content": "hi"}])
OWN = {"default": "own: {{ messages[0].content }}"}
ENDLESS = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
TIMEOUT_S = 0.7


def renderer(**limits: float) -> ChatRenderer:
    facts = LoadedTokenizer(Tokenizer(BPE()), SpecialTokens(), (), OWN, None)
    return ChatRenderer(facts, ChatLimits(**{"timeout_s": TIMEOUT_S, "memory_bytes": 256 << 20, **limits}))


@pytest.fixture
async def chat() -> AsyncIterator[ChatRenderer]:
    made = renderer()
    await made.start()
    yield made
    await made.close()


BOMBS = {
    "repeated text": "{{ 'a' * 10**9 }}",
    "width": "{{ '%0999999999d' % 1 }}",
    "filter": "{{ 'a'|center(10**9) }}",
    "list": "{{ ([0] * 10**9)|length }}",
    "doubling": "{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "loops": ENDLESS,
    "output": "{% for i in range(9000) %}{% for j in range(9000) %}xxxxxxxxxx{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "fork": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "globals": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "init": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "include": "{% include '/etc/passwd' %}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "fors": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "chain": "{{ 1" + "+1" * 20_000 + " }}",
    "digits": "{{ " + "9" * 5000 + " }}",
    "long": "x" * 300_000,
    "raised": "{{ raise_exception('x' * 10**7) }}",
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_its_senders_error(chat: ChatRenderer, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidRequest) as caught:
        await chat.render(Conversation(MESSAGES, chat_template=BOMBS[name]))

    assert time.monotonic() - began < 10
    assert len(caught.value.message) < 1500
    assert await chat.render(Conversation(MESSAGES)) == "own: hi"


@pytest.mark.parametrize("name", ["fors", "digits"])
async def test_what_python_cannot_compile_is_said_to_be_that(chat: ChatRenderer, name: str) -> None:
    """Once the process died of it, and the client was told to use less memory."""
    with pytest.raises(InvalidRequest, match="cannot be compiled"):
        await chat.render(Conversation(MESSAGES, chat_template=BOMBS[name]))


@pytest.mark.parametrize(
    "template", ["{{ ''|attr('__class__') }}", "{{ ''['__class__'] }}", "{{ ['a']|map(attribute='__class__')|first }}"]
)
async def test_hidden_attributes_are_not_there(chat: ChatRenderer, template: str) -> None:
    assert await chat.render(Conversation(MESSAGES, chat_template=template)) == ""


async def test_many_endless_templates_delay_the_models_own_by_nothing(chat: ChatRenderer) -> None:
    hostile = [asyncio.create_task(chat.render(Conversation(MESSAGES, chat_template=f"{ENDLESS}{i}"))) for i in range(6)]
    await asyncio.sleep(0)

    began = time.monotonic()
    assert await chat.render(Conversation(MESSAGES)) == "own: hi"
    took = time.monotonic() - began

    outcomes = await asyncio.gather(*hostile, return_exceptions=True)
    assert took < TIMEOUT_S
    assert all(isinstance(outcome, InvalidRequest) for outcome in outcomes)


async def test_an_honest_template_waits_for_some_and_not_for_all_of_the_hostile() -> None:
    chat = renderer(max_foreign=4)
    hostile = [asyncio.create_task(chat.render(Conversation(MESSAGES, chat_template=f"{ENDLESS}{i}"))) for i in range(20)]
    await asyncio.sleep(0)

    with pytest.raises(Overloaded) as caught:
        await chat.render(Conversation(MESSAGES, chat_template="{{ messages[0].content }}"))
    outcomes = await asyncio.gather(*hostile, return_exceptions=True)
    answer = await chat.render(Conversation(MESSAGES, chat_template="{{ messages[0].content }}"))
    await chat.close()

    assert caught.value.retry_after_s == TIMEOUT_S
    assert sum(isinstance(outcome, InvalidRequest) for outcome in outcomes) == 4
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 16
    assert answer == "hi"


async def test_a_template_of_the_model_that_never_ends_costs_its_requests_only() -> None:
    facts = LoadedTokenizer(Tokenizer(BPE()), SpecialTokens(), (), {"default": ENDLESS}, None)
    chat = ChatRenderer(facts, ChatLimits(timeout_s=TIMEOUT_S))
    await chat.start()

    with pytest.raises(InvalidRequest, match="longer than"):
        await chat.render(Conversation(MESSAGES))
    answer = await chat.render(Conversation(MESSAGES, chat_template="{{ messages[0].content }}"))
    await chat.close()

    assert answer == "hi"
