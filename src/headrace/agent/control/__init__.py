"""What agents and the coordinator say to each other: sealed messages over gRPC."""
