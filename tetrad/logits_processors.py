"""Custom logits processors: the class to derive from, and the values that its methods get."""

from tetrad.worker_svc.core.logits_processor import AdapterLogitsProcessor as AdapterLogitsProcessor
from tetrad.worker_svc.core.logits_processor import ProcessorConfig as ProcessorConfig
from tetrad.worker_svc.core.logits_processor import RequestLogitsProcessor as RequestLogitsProcessor
from tetrad.worker_svc.core.logits_processor import RequestParams as RequestParams
