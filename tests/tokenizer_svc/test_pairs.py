"""Pairs of texts for cross-encoders: joined by the tokenizer's own template."""

import pytest

from tests.documents import ROOT
from tests.worker_svc.pooling.checkpoints import ENCODERS, save_encoder
from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.chat.pair_prompts import PairPrompts, PairTemplate
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.loading.load import load_tokenizer

CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert")
    save_encoder(directory, ENCODERS["bert"])
    return load_tokenizer(str(directory))


def test_a_pair_is_joined_by_special_tokens_and_its_second_text_is_of_type_1(bert):
    encoded = bert.encode_pair("w0 w1", "w2 w3 w4")

    assert encoded.token_ids == [CLS, 4, 5, SEP, 6, 7, 8, SEP]
    assert encoded.type_boundary == 4


def test_a_tokenizer_without_types_has_no_boundary(tokenizer):
    assert tokenizer.encode_pair("a", "b").type_boundary is None


def test_the_second_text_is_cut_to_the_limit(bert):
    assert bert.encode_pair("w0 w1", "w2 w3 w4", max_tokens=6).token_ids == [CLS, 4, 5, SEP, 6, SEP]


@pytest.mark.parametrize("max_tokens", [4, 5])
def test_a_first_text_that_fills_the_limit_is_refused(bert, max_tokens):
    with pytest.raises(
        InvalidRequest, match=f"has 5 tokens, and the limit of the pair is {max_tokens}: no token of the second"
    ):
        bert.encode_pair("w0 w1", "w2 w3 w4", max_tokens=max_tokens)


@pytest.mark.parametrize(("surplus", "kept"), [(1, "你好世界"), (2, "你好世界"), (3, "你好世界"), (4, "你好世")])
def test_a_document_is_shortened_by_whole_characters(tokenizer, surplus, kept):
    """The last two characters have three tokens each, the others two."""
    assert PairPrompts(tokenizer, ChatRenderer(tokenizer.facts, ChatLimits())).shortened(("q", "你好世界鑫"), surplus, 9) == (
        "q",
        kept,
    )


async def test_the_template_of_the_docs_writes_qwen3_rerankers_prompt(bert):
    """The text of the model card."""
    template = PairTemplate((ROOT / "docs/templates/qwen3_reranker.jinja").read_text(), '{"instruction": "Find it."}')
    chat = ChatRenderer(bert.facts, ChatLimits())
    try:
        prompt = await PairPrompts(bert, chat).write(("Where?", "Here."), template)
    finally:
        await chat.close()

    assert prompt == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Find it.\n<Query>: Where?\n<Document>: Here.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
