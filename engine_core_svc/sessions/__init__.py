"""The sessions of frontends: their requests, and the outputs that are still to be sent."""
