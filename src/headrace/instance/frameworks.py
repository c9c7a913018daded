"""What frameworks are started with: ranks of torch.distributed, torchrun, MultiWorkerMirroredStrategy, tf.data.service. Pure.
"""

from __future__ import annotations
