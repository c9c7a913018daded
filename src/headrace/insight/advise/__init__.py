"""How many data hosts of which type remove the wait, and whether that is cheaper.

`model` says how long a step takes on a cluster, `measuring` what a run tells the model (`measured` has the values),
`clusters` what candidates cost and which stand out, `wording` puts it into sentences, and `advising` reads a run and
joins all.
"""

from headrace.insight.advise.advice_text import Current
from headrace.insight.advise.advisor import (
    ADVISE_FORMULAS,
    DEFAULT_TYPES,
    Advised,
    Verified,
    advised,
    judge_clusters,
    verified,
)
from headrace.insight.advise.calibrate import measure
from headrace.insight.advise.clusters import Candidate, Scenario
from headrace.insight.advise.measured_inputs import GroupFacts, Measured
from headrace.insight.advise.model import Pool, Prediction, Range, Workload, predict

__all__ = [
    "ADVISE_FORMULAS",
    "DEFAULT_TYPES",
    "Advised",
    "Candidate",
    "Current",
    "GroupFacts",
    "Measured",
    "Pool",
    "Prediction",
    "Range",
    "Scenario",
    "Verified",
    "Workload",
    "advised",
    "judge_clusters",
    "measure",
    "predict",
    "verified",
]
