"""In place of torchvision, which has no build for CPUs here. Mosaic Streaming imports two names of it."""
