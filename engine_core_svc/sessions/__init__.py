"""The frontends, their requests, and the outputs on their way to them."""
