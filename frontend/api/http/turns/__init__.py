"""An assistant's turn as the Responses and the Messages API need it: blocks, token totals, sampling fields."""
