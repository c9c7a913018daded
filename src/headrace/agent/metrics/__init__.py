"""What an agent measures on its host: CPU, memory, network, disk, GPUs, values in logs."""
