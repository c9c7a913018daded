#!/bin/bash
# A driver as ModelTrainer of the SageMaker SDK 3 ships it: knows the files of the platform only.
set -e
echo "Starting training script"
config=/opt/ml/input/config
python - "$config" > /opt/ml/input/sm_training.env <<'PYTHON'
import json, os, shlex, sys
resource = json.load(open(sys.argv[1] + "/resourceconfig.json"))
channels = json.load(open(sys.argv[1] + "/inputdataconfig.json"))
hyper = {k: json.loads(v) for k, v in json.load(open(sys.argv[1] + "/hyperparameters.json")).items()}
group = resource["current_group_name"]
say = {
    "SM_CURRENT_HOST": resource["current_host"],
    "SM_HOSTS": json.dumps(resource["hosts"]),
    "MY_GROUP": group,
    "MY_GROUP_HOSTS": json.dumps(next(g["hosts"] for g in resource["instance_groups"] if g["instance_group_name"] == group)),
    "SM_SOURCE_DIR": "/opt/ml/input/data/code",
    "SM_HPS": json.dumps(hyper),
    **{"SM_CHANNEL_" + name.upper(): "/opt/ml/input/data/" + name for name in channels},
}
for name, value in say.items():
    print(f"export {name}={shlex.quote(value)}")
PYTHON
source /opt/ml/input/sm_training.env
cd "$SM_SOURCE_DIR"
python train.py --epochs "$(python -c 'import json, os; print(json.loads(os.environ["SM_HPS"])["epochs"])')"
echo "Training Container Exit"
