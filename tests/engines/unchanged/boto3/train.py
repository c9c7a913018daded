"""A script as it was written for script mode: variables, arguments, checkpoints, metrics on standard output."""

# ruff: noqa

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--learning-rate", type=float)
parser.add_argument("--layers", type=str)
parser.add_argument("--augment", type=str)
parser.add_argument("--name", type=str)
parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
parser.add_argument("--train", default=os.environ.get("SM_CHANNEL_TRAIN"))
args = parser.parse_args()

host, group = os.environ["SM_CURRENT_HOST"], os.environ["SM_CURRENT_INSTANCE_GROUP"]
print("arguments", json.dumps(vars(args), sort_keys=True))
print("job", os.environ["TRAINING_JOB_NAME"], os.environ["STAGE"], json.loads(os.environ["SM_HPS"])["layers"])
checkpoints = Path("/opt/ml/checkpoints")
begun = sorted(path.name for path in checkpoints.iterdir())
print("found", begun, "files", sorted(os.listdir(args.train)) if args.train else None)
for epoch in range(len(begun), args.epochs):
    if group == "dnn group/1":
        (checkpoints / f"epoch-{epoch}").write_text(host)
    print(f"loss: {1 / (epoch + 1):.4f};", flush=True)
Path(args.model_dir, host + ".txt").write_text(group)
Path(os.environ["SM_OUTPUT_DATA_DIR"], "metrics.json").write_text("{}")
