"""A JAX process on the GPU: it puts the feed's arrays on the device, from few slabs, and prints what it saw."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from headrace import feed

ROWS, WIDTH = 400, 65_536


class Images:
    """Rows of 256 KB that are told apart by every element."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": np.full(WIDTH, index, np.float32), "i": index}


@jax.jit
def heavy(x: jax.Array) -> jax.Array:
    """Takes longer than a batch, so that transfers stand in line."""
    product = jnp.tile(x[:, :4096], (1024, 1))
    for _ in range(4):
        product = jnp.tanh(product @ product.T @ product * 1e-9)
    return product.sum()


def main() -> None:
    """Entry point."""
    extremes, labels, kept = [], [], []
    loader = feed.DataLoader(
        Images(), 4, num_workers=2, collate_fn=feed.stack_arrays, memory=16 << 20, shuffle=True, seed=1
    )
    with loader:
        for batch in loader:
            x = jax.device_put(batch["x"])
            labels += batch["i"].tolist()
            kept.append(heavy(x))
            extremes.append((x.min(axis=1), x.max(axis=1)))
    low, high = (np.concatenate([np.asarray(each) for each in side]) for side in zip(*extremes, strict=True))
    seen = {
        "platform": jax.devices()[0].platform,
        "intact": low.tolist() == high.tolist() == labels,
        "all": sorted(labels) == list(range(ROWS)),
        "finite": bool(jnp.isfinite(jnp.stack(kept)).all()),
        "torch": "torch" in sys.modules,
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
