"""Prompts, where programs made for vLLM import them from."""

from tetrad.frontend.prompts import PromptType as PromptType
from tetrad.frontend.prompts import TextPrompt as TextPrompt
from tetrad.frontend.prompts import TokensPrompt as TokensPrompt
