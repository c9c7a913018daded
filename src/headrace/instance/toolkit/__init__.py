"""Names that programs find where their own Python does not have them: `sagemaker_training`, and `headrace` itself.

AWS's guide tells programs to write ``from sagemaker_training import environment``. Where SageMaker's own toolkit is not
installed, that name leads to headrace's `Environment`, which has the same properties. Where it is installed, it wins.
"""

from __future__ import annotations

from pathlib import Path

SEARCH_PATH = str(Path(__file__).resolve().parent)
"""Goes at the end of a program's PYTHONPATH."""
