"""What each host may use of this machine: CPUs, memory and GPUs, through control groups where they can be set."""
