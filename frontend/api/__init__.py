"""The frontend's APIs: HTTP, gRPC, and those of foreign gateways."""
