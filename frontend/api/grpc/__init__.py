"""The public gRPC API: servicers, and how its messages become what HTTP's bodies become."""
