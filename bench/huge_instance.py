"""Generate ``instances/huge-64-sites.json``: 64 unequal sites with a million GPUs, four hubs.

Sixteen sites around each of four hubs, the hubs joined pairwise. Sizes, GPUs and fibre are drawn
with a fixed seed, so that the same file comes out every time::

    python bench/huge_instance.py instances/huge-64-sites.json
"""

from __future__ import annotations

import json
import random
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

SEED = 64
HUBS = ("north", "east", "south", "west")
SITES_PER_HUB = 16
TOTAL_GPUS = 1_000_000
NODE_GPUS = 8
SMALLEST_NODES, LARGEST_NODES = 512, 4096
"""Nodes of a site before the sizes are scaled to the total."""
GPUS = ("H100", "H200", "B200")
UPLINK_KM = (2, 20)
UPLINK_OVERSUBSCRIPTION = 4
HUB_KM = {
    ("north", "east"): 90,
    ("north", "south"): 140,
    ("north", "west"): 80,
    ("east", "south"): 100,
    ("east", "west"): 150,
    ("south", "west"): 110,
}
HUB_BANDWIDTH = "1638.4 Tb/s"
"""Between two hubs: 64 fibre pairs of 64 wavelengths of 400 Gb/s."""
SEQUENCES, SEQUENCE_LENGTH = 131_072, 8_192


def huge_instance() -> dict[str, Any]:
    """The instance as a JSON document."""
    draw = random.Random(SEED)
    names = [f"{hub}-{i:02d}" for hub in HUBS for i in range(1, SITES_PER_HUB + 1)]
    weights = [draw.randint(SMALLEST_NODES, LARGEST_NODES) for _ in names]
    nodes = _apportion(weights, TOTAL_GPUS // NODE_GPUS)
    sites = [
        {"name": name, "gpu": draw.choice(GPUS), "num_gpus": NODE_GPUS * count}
        for name, count in zip(names, nodes, strict=True)
    ]
    links: list[dict[str, Any]] = [
        {
            "from": name,
            "to": f"hub-{name.split('-')[0]}",
            "oversubscription": UPLINK_OVERSUBSCRIPTION,
            "distance_km": draw.randint(*UPLINK_KM),
        }
        for name in names
    ]
    links += [
        {
            "from": f"hub-{a}",
            "to": f"hub-{b}",
            "bandwidth_gbps": HUB_BANDWIDTH,
            "distance_km": HUB_KM[a, b],
        }
        for a, b in combinations(HUBS, 2)
    ]
    return {
        "$schema": "instance.schema.json",
        "name": "huge-64-sites",
        "description": (
            "A mixture of experts of a trillion parameters on 64 unequal sites of H100, H200 and "
            "B200, a million GPUs in all, around four hubs 80 to 150 km apart."
        ),
        "model": "moe-1t",
        "training": {
            "global_batch_size": SEQUENCES,
            "sequence_length": SEQUENCE_LENGTH,
            "precision": "bf16",
            "optimizer": "adam",
        },
        "cluster": {
            "sites": sites,
            "hubs": [{"name": f"hub-{hub}"} for hub in HUBS],
            "links": links,
        },
    }


def _apportion(weights: list[int], total: int) -> list[int]:
    """Whole shares of a total in proportion to weights, largest remainders first."""
    exact = [weight * total / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares


def main() -> None:
    """Write the instance to the file named on the command line."""
    target = Path(sys.argv[1])
    target.write_text(json.dumps(huge_instance(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
