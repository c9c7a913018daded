"""What clients and feed servers say to each other, and how it travels."""
