"""Request checks of runners that only generate, from token ids, with the base model: no pooling, adapters or embeddings."""

from tetrad.worker_svc.core.request_table import refuse_extra_args, refuse_pooling
from tetrad.worker_svc.runner.loras import NoLoras
from tetrad.worker_svc.runner.prompt_embeds import NoPromptEmbeds

PLAIN_REQUESTS = (refuse_pooling, refuse_extra_args, NoLoras().check, NoPromptEmbeds().check)
