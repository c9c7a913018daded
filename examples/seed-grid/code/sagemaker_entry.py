"""Every rank says what it would train on. The trainer of your own stands here, or is called from here: its exit code
must be this program's, because it is what the line's truth is made of."""

import argparse
import os
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--num_epochs", type=int)
parser.add_argument("--batch_size", type=int)
parser.add_argument("--lr_decay_mode")
parser.add_argument("--warmup_epochs", type=int)
arguments = parser.parse_args()

folder = os.environ["SM_CHANNEL_TRAIN"]
files = list(Path(folder).iterdir())
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
print(f"rank {rank}: {len(files)} files in {folder}, {arguments.num_epochs} epochs", flush=True)
sys.exit(0 if files else f"{folder} holds no data")
