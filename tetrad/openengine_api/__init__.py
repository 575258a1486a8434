"""Stubs of OpenEngine's gRPC API (package openengine.v1), generated from protos/third_party; served by frontend/api/gateways."""
