"""Types of prompts, under vLLM's import path."""

from tetrad.frontend.request.prompts import EmbedsPrompt as EmbedsPrompt
from tetrad.frontend.request.prompts import PromptType as PromptType
from tetrad.frontend.request.prompts import TextPrompt as TextPrompt
from tetrad.frontend.request.prompts import TokensPrompt as TokensPrompt
