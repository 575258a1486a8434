"""Checks of runners whose requests are token ids and the base model's tokens, and nothing else."""

from tetrad.worker_svc.core.request_table import refuse_pooling
from tetrad.worker_svc.runner.loras import NoLoras
from tetrad.worker_svc.runner.prompt_embeds import NoPromptEmbeds

PLAIN_REQUESTS = (refuse_pooling, NoLoras().check, NoPromptEmbeds().check)
