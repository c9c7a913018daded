"""The JSON Schemas (draft 2020-12) of a job file and of a CreateTrainingJob request, for editors and other programs.
"""

from __future__ import annotations
