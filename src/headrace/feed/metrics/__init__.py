"""What a training loop and its workers do with their time."""
