"""A custom logits processor for random requests. Workers import it by name."""

from tetrad.logits_processors import AdapterLogitsProcessor


class Favourite(AdapterLogitsProcessor):
    """Favours tokens that follow from all tokens before."""

    def new_req_logits_processor(self, params):
        strength = (params.extra_args or {}).get("favour")
        if strength is None:
            return None

        def favour(prompt_token_ids, output_token_ids, logits):
            seen = sum(prompt_token_ids) + sum((i + 1) * token for i, token in enumerate(output_token_ids))
            logits[seen % 11 + 5 :: 11] += strength
            return logits

        return favour
