"""A JAX process with four devices that trains from the feed and prints what it saw (see test_jax_feed.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROWS = {"shuffle": True, "seed": 3, "drop_last": True}


def main(directory: str) -> dict[str, Any]:
    """Returns what was seen."""
    import array_data
    import jax
    import jax.numpy as jnp
    import numpy as np

    from headrace.feed import DataLoader, Window, stack_arrays

    workers = {"num_workers": 1, "multiprocessing_context": "forkserver", "collate_fn": stack_arrays}
    saw: dict[str, Any] = {}

    # Device arrays of an epoch are held: they are views of slabs, whose memory must not be used again.
    loader = DataLoader(array_data.wide(), 8, memory=1 << 20, **ROWS, **workers)
    held = [(jax.device_put(images), labels.tolist()) for images, labels in loader]
    saw["intact"] = [np.asarray(images)[:, 0].tolist() == labels for images, labels in held]
    saw["labels"] = sorted(label for _, labels in held for label in labels)
    loader.close()

    # Two epochs of training, at once and from a position in the middle; every device takes its rows of a batch.
    mesh = jax.make_mesh((4,), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    @jax.jit
    def step(weights: Any, vectors: Any, labels: Any) -> Any:
        return weights - 1e-5 * jax.grad(lambda w: jnp.mean((vectors @ w - labels) ** 2))(weights)

    def train(loader: Any, weights: Any, stop: int) -> tuple[Any, int]:
        taken = 0
        for vectors, labels in loader:
            parts = [jax.make_array_from_process_local_data(rows, part) for part in (vectors, labels)]
            weights = step(weights, *parts)
            taken += 1
            if taken == stop:
                break
        return weights, taken

    folder = Path(directory) / "lines"
    folder.mkdir()
    array_data.write_lines(folder)
    begin = jax.device_put(np.zeros(4, np.float32), whole)

    def source() -> Any:
        return DataLoader(array_data.lines(str(folder)), 8, shuffle=Window(8, 2), seed=3, **workers)

    with source() as loader:
        weights, steps = train(loader, begin, 0)
        saw["steps"] = steps
        weights, _ = train(loader, weights, 0)
        saw["trained"] = np.asarray(weights).tolist()
    with source() as loader:
        weights, _ = train(loader, begin, 9)
        state = json.dumps(loader.state_dict())
    with source() as loader:
        loader.load_state_dict(json.loads(state))
        weights, saw["steps left"] = train(loader, weights, 0)
        weights, _ = train(loader, weights, 0)
        saw["resumed"] = np.asarray(weights).tolist()
    saw["devices"] = jax.device_count()
    saw["torch"] = "torch" in sys.modules
    return saw


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
