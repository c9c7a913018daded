"""Sealed messages between agents and coordinator, over gRPC."""
