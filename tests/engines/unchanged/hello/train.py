"""Says what the platform tells a program about the groups of its job, by the toolkit and by the file."""

# ruff: noqa

import json
import os

from sagemaker_training import environment

env = environment.Environment()

print("current_host:", env.current_host)
print("current_instance_type:", env.current_instance_type)
print("current_instance_group:", env.current_instance_group)
print("current_instance_group_hosts:", env.current_instance_group_hosts)
print("is_hetero:", env.is_hetero)
print("instance_groups:", env.instance_groups)
print("instance_groups_dict:", json.dumps(env.instance_groups_dict, sort_keys=True))
print("distribution_instance_groups:", env.distribution_instance_groups)
print("distribution_hosts:", env.distribution_hosts)
print(
    "variables:", os.environ["SM_CURRENT_INSTANCE_GROUP"], os.environ["SM_INSTANCE_GROUPS"], os.environ["SM_IS_HETERO"]
)

with open("/opt/ml/input/config/resourceconfig.json") as file:
    print("resourceconfig.json:", json.dumps(json.load(file), sort_keys=True))
