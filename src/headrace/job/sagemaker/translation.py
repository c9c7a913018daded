"""Between a CreateTrainingJob request and a job, both ways. Pure: nothing is checked, uploaded or sent.
"""

from __future__ import annotations
