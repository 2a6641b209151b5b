"""Small random instances whose whole plan space can be enumerated.

The sizes are chosen such that communication, memory and computation all matter: the links are slow
for some seeds and fast for others, the memory limits are drawn from what the plans need, and the
``search`` of the instance forces what a small job would never choose by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any, NamedTuple

from planner.check import memory_of_layout
from planner.cost.coefficients import case_coefficients
from planner.instance.errors import InputError
from planner.instance.load import load_instance
from planner.instance.schema import Instance
from planner.problem import Problem
from tests.brute_force import count_layouts, enumerate_layouts

FEWEST_PLANS = 3_000
MOST_PLANS = 60_000

FEWEST_NETWORK_PLANS = 60
MOST_NETWORK_PLANS = 600
FEWEST_SHARING_PLANS = 12
MOST_SHARING_PLANS = 2_500

Document = dict[str, Any]

_ALL: dict[str, tuple[Any, ...]] = {
    "schedule": ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zbv", "dualpipe_v", "dora"),
    "sharding": ("ddp", "zero1", "zero2", "zero3"),
    "recompute": ("none", "selective", "full"),
    "sync": ("flat", "hierarchical"),
    "overlap": (True, False),
    "placement_kind": ("single-site", "dp-out", "pp-out", "mixed"),
    "micro_batch_size": (1, 2, 4, 8),
    "virtual_stages": (1, 2, 3),
    "extra_warmup": (0, 1, 2, 3, 4),
}

_PROTOCOLS = (
    "rdma_ecmp",
    "rdma_ecmp_qp16",
    "rdma_spray",
    "rdma_ec",
    "tcp_cubic",
    "tcp_bbr",
    "own_udp",
    "own_window",
)

_OWN_PROTOCOLS = [
    {"name": "own_udp", "balance": 0.6, "loss_rule": "erasure", "overhead": 0.9, "code_rate": 0.9},
    {
        "name": "own_window",
        "balance": "ecmp",
        "queue_pairs": 4,
        "loss_rule": "selective_repeat",
        "window_bytes": "1 MiB",
    },
]


class _Draft(NamedTuple):
    """An instance before its search is narrowed and its memory limited."""

    document: Document
    tightness: float | None
    """Share of the plans that fit into the memory of the first site; below 0 none does."""
    keep: tuple[str, ...]
    """Choices that are not narrowed."""


def random_instance(seed: int) -> Instance:
    """The instance of a seed; always the same one.

    Between :data:`FEWEST_PLANS` and :data:`MOST_PLANS` plans are legal; the last digit of the seed
    is the theme.
    """
    rng = random.Random(f"instance {seed}")
    theme = _THEMES[seed % len(_THEMES)]
    while True:
        draft = theme(rng)
        draft.document["name"] = f"random-{seed}"
        most = rng.choice((12_000, 20_000, 30_000, MOST_PLANS))
        instance = _resized(draft, most, rng)
        if instance is not None:
            return _limited(instance, draft, rng)


def random_network(seed: int) -> Instance:
    """A small instance whose network decides; always the same one for a seed.

    Several sites share the uplink of a hub, links allow different protocols, tokens reach a limited
    number of nodes; some instances have jitter, zones, measured curves and rates, a histogram of
    tokens per expert or a protocol for each class besides.  Between :data:`FEWEST_NETWORK_PLANS`
    and :data:`MOST_NETWORK_PLANS` plans are legal.
    """
    rng = random.Random(f"network instance {seed}")
    while True:
        draft = _network(rng)
        draft.document["name"] = f"random-network-{seed}"
        with_network_features(draft.document, rng)
        instance = _resized(draft, MOST_NETWORK_PLANS, rng, fewest=FEWEST_NETWORK_PLANS)
        if instance is not None:
            return _limited(instance, draft, rng)


def random_sharing(seed: int) -> Instance:
    """A small instance whose pipeline has to take turns on links; always the same one for a seed.

    Even seeds have loops over two sites, odd ones stages on several sites that are joined by a hub
    or in a chain.  Between :data:`FEWEST_SHARING_PLANS` and :data:`MOST_SHARING_PLANS` plans are
    legal.
    """
    rng = random.Random(f"sharing instance {seed}")
    while True:
        draft = _turns(rng, loops=seed % 2 == 0)
        draft.document["name"] = f"random-sharing-{seed}"
        instance = _resized(draft, MOST_SHARING_PLANS, rng, fewest=FEWEST_SHARING_PLANS)
        if instance is not None:
            return _limited(instance, draft, rng)


def random_fabric(seed: int) -> Instance:
    """A small instance whose fabric inside the sites decides; always the same one for a seed.

    Groups span several scale-up domains and zones under an oversubscribed fabric; some sites have
    switches that reduce, collectives in chunks, measured curves.  One or two sites, joined directly
    or by hubs; links have a length, loss, jitter and several protocols.  Between
    :data:`FEWEST_NETWORK_PLANS` and :data:`MOST_NETWORK_PLANS` plans are legal.
    """
    rng = random.Random(f"fabric instance {seed}")
    while True:
        draft = _fabric(rng)
        draft.document["name"] = f"random-fabric-{seed}"
        instance = _resized(draft, MOST_NETWORK_PLANS, rng, fewest=FEWEST_NETWORK_PLANS)
        if instance is not None:
            return _limited(instance, draft, rng)


def with_network_features(document: Document, rng: random.Random) -> None:
    """Give links jitter and measured rates, sites zones and curves, experts a histogram."""
    for link in document["cluster"]["links"]:
        link["loss"] = rng.choice((link.get("loss", 0.0), 1e-4, 1e-2))
        link["jitter_s"] = rng.choice((0.0, 1e-4, 2e-3))
        if rng.random() < 0.5:
            rate = rng.choice((0.2, 0.5)) * link["bandwidth_gbps"]
            link["measured"] = [{"protocol": link["protocols"][0], "bandwidth_gbps": rate}]
    for site in document["cluster"]["sites"]:
        node = max(site["gpu"]["gpus_per_node"], site["gpu"]["scale_up_domain"])
        if site["num_gpus"] > node:
            site |= {"zone_gpus": node, "fabric_oversubscription": rng.choice((2, 4))}
        if rng.random() < 0.5:
            piece = {"step_s": 6e-6, "bytes_per_s": rng.choice((5e9, 40e9))}
            curve = {"tier": "network", "launch_s": 3e-5, "pieces": [piece]}
            site["measured"] = [curve | {"collective": name} for name in ("all_reduce", "p2p")]
    if document["model"].get("num_experts"):
        document["training"]["routing_imbalance"] = 1.0
        experts = range(document["model"]["num_experts"])
        document["training"]["tokens_per_expert"] = [rng.randint(1, 9) for _ in experts]


def _resized(
    draft: _Draft, most: int, rng: random.Random, *, fewest: int = FEWEST_PLANS
) -> Instance | None:
    """The instance, its search narrowed until at most ``most`` plans are left."""
    steps = 0
    while True:
        try:
            instance = load_instance(draft.document)
        except InputError:
            return None
        number = count_layouts(instance, most)
        if number < fewest:
            return None
        if number <= most:
            return instance
        steps += 1
        if steps > 40 or not _narrowed(draft, rng):
            return None


def _narrowed(draft: _Draft, rng: random.Random) -> bool:
    """Take one value away from one choice; False where nothing is left to take."""
    search, cluster = draft.document["search"], draft.document["cluster"]
    links = [link for link in cluster["links"] if len(link["protocols"]) > 1]
    names = [
        name for name in _ALL if name not in draft.keep and len(search.get(name, _ALL[name])) > 1
    ]
    names += ["protocols"] * (2 if len(links) > 1 else 0)
    if not names:
        return False
    name = rng.choice(names)
    if name == "protocols":
        rng.choice(links)["protocols"].pop()
        return True
    values = list(search.get(name, _ALL[name]))
    values.remove(rng.choice(values[1:] if name == "extra_warmup" else values))
    search[name] = values
    return True


def _limited(instance: Instance, draft: _Draft, rng: random.Random) -> Instance:
    """The instance with memory limits drawn from what a sample of its plans needs."""
    tightness = draft.tightness
    if tightness is None:
        return instance
    problem = Problem(instance)
    step = rng.randint(7, 23)
    needed: list[dict[str, int]] = []
    for layout in islice(enumerate_layouts(instance), rng.randrange(step), None, step):
        peaks: dict[str, int] = {}
        for row in memory_of_layout(problem, case_coefficients(problem, layout.degrees), layout):
            peaks[row.site] = max(peaks.get(row.site, 0), row.peak_mib)
        needed.append(peaks)
    largest = sorted(max(peaks.values()) for peaks in needed)
    limit = largest[min(int(tightness * len(largest)), len(largest) - 1)]
    if tightness < 0:
        limit = int(largest[0] * 0.8)
    for site in draft.document["cluster"]["sites"]:
        factor = rng.choice((1.0, 1.0, 1.0, 1.15, 1.5)) if tightness >= 0 else 1.0
        site["memory_limit_bytes"] = int(limit * factor) << 20
    return load_instance(draft.document)


def _gpu(rng: random.Random, name: str, tera: float, node: int, nic: float) -> Document:
    return {
        "name": name,
        "peak_flops": {"bf16": tera * 1e12},
        "memory_bytes": "512 GiB",
        "memory_bandwidth_bytes_per_s": rng.choice((0.5e12, 1.5e12, 3e12)),
        "scale_up_bytes_per_s": rng.choice((50e9, 300e9, 450e9)),
        "scale_up_domain": node,
        "gpus_per_node": node,
        "nic_gbps": nic,
    }


def _model(rng: random.Random, layers: int, *, moe: bool | None = None) -> Document:
    """A model of a few wide layers."""
    if moe is None:
        moe = rng.random() < 0.4
    hidden = rng.choice((512, 1024, 2048))
    heads = rng.choice((4, 8))
    model: Document = {
        "name": "micro",
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": rng.choice((heads, heads // 2, 2, 1)),
        "ffn_hidden_size": hidden * rng.choice((2, 4)),
        "vocab_size": rng.choice((1000, 32000, 64000)),
        "gated": rng.random() < 0.7,
        "tied_embeddings": rng.random() < 0.3,
    }
    if moe:
        model |= {
            "num_experts": rng.choice((4, 8)),
            "experts_per_token": rng.choice((1, 2)),
            "expert_ffn_hidden_size": hidden * rng.choice((1, 2)),
            "shared_expert_ffn_hidden_size": rng.choice((0, hidden)),
        }
        shape = rng.random()
        if shape < 0.3:
            model["first_k_dense"] = rng.randint(1, max(1, layers // 2))
        elif shape < 0.6 and layers >= 2:
            model["moe_layer_interval"] = 2
    return model


def _link(rng: random.Random, source: str, target: str, speed: str) -> Document:
    gbps, delay = {
        "slow": (rng.choice((0.5, 1, 2)), rng.choice((5e-3, 10e-3, 20e-3))),
        "medium": (rng.choice((10, 40, 100)), rng.choice((0.5e-3, 1e-3, 3e-3))),
        "fast": (rng.choice((200, 400, 800)), rng.choice((10e-6, 50e-6, 200e-6))),
        "far": (rng.choice((400, 800, 1600)), rng.choice((1e-3, 3e-3, 8e-3))),
        "thin": (rng.choice((5, 10, 25)), 20e-6),
    }[speed]
    link: Document = {"from": source, "to": target, "bandwidth_gbps": gbps, "delay_s": delay}
    if rng.random() < 0.25:
        link["reverse_bandwidth_gbps"] = gbps * rng.choice((0.25, 0.5, 2))
    if rng.random() < 0.4:
        link["loss"] = rng.choice((1e-6, 1e-5, 1e-4, 1e-3, 2e-2))
    if rng.random() < 0.4:
        link["paths"] = rng.choice((2, 4, 16))
    link["protocols"] = rng.sample(_PROTOCOLS, rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.25:
        link["protocol_per_class"] = True
    return link


def _cluster(
    rng: random.Random, gpus: list[int], node: int, speed: str, *, tera: float = 100.0
) -> Document:
    """Sites with so many GPUs each, in nodes of ``node``, joined directly or through a hub."""
    nic = rng.choice((25.0, 100.0, 400.0))
    kinds = [_gpu(rng, "micro", tera, node, nic)]
    if rng.random() < 0.5:
        kinds.append(_gpu(rng, "mini", tera * rng.choice((0.3, 0.6, 2.0)), node, nic))
    names = [f"site{d}" for d in range(len(gpus))]
    sites = [
        {"name": name, "gpu": rng.choice(kinds), "num_gpus": count}
        for name, count in zip(names, gpus, strict=True)
    ]
    if rng.random() < 0.2:
        rng.choice(sites)["fabric_oversubscription"] = 2
    cluster: Document = {"sites": sites, "protocols": _OWN_PROTOCOLS}
    hub = len(gpus) > 1 and rng.random() < 0.2
    if hub:
        cluster["hubs"] = [{"name": "hub"}]
        cluster["links"] = [_link(rng, name, "hub", speed) for name in names]
        for link in cluster["links"]:
            link["protocols"] = link["protocols"][:2]
        return cluster
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    if len(pairs) == 3 and rng.random() < 0.5:
        pairs.remove(rng.choice(pairs))
    cluster["links"] = [_link(rng, a, b, speed) for a, b in pairs]
    return cluster


def _draft(
    rng: random.Random,
    *,
    model: Document,
    cluster: Document,
    batch: int,
    sequence: int,
    search: Document,
    tightness: float | None,
    keep: tuple[str, ...] = (),
) -> _Draft:
    training = {
        "global_batch_size": batch,
        "sequence_length": sequence,
        "gradient_bytes": rng.choice((2, 4)),
        "routing_imbalance": rng.choice((1, 1.5)) if "num_experts" in model else 1,
    }
    document = {"model": model, "training": training, "cluster": cluster, "search": search}
    return _Draft(document, tightness, keep)


def _tight(rng: random.Random) -> float | None:
    return rng.choice((None, None, 0.3, 0.05, 0.01, 0.0))


def _free(rng: random.Random) -> _Draft:
    """Two small sites and hardly any restriction."""
    nodes = rng.choice((1, 2))
    gpus = [nodes * rng.choice((1, 2)), nodes * rng.choice((1, 2, 3))]
    return _draft(
        rng,
        model=_model(rng, rng.randint(2, 3)),
        cluster=_cluster(rng, gpus, nodes, rng.choice(("slow", "medium", "fast"))),
        batch=rng.choice((4, 6, 8)),
        sequence=rng.choice((128, 512, 2048)),
        search={"virtual_stages": [1, 2]},
        tightness=_tight(rng),
    )


def _latency(rng: random.Random) -> _Draft:
    """A pipeline over two sites far apart: extra warm-up hides the delay."""
    layers = rng.choice((2, 4))
    search: Document = {
        "pp": [2],
        "tp": [1],
        "micro_batch_size": [1],
        "placement_kind": ["pp-out"],
        "schedule": rng.choice((["1f1b"], ["zb_h1"], ["1f1b", "zb_h1"], ["gpipe", "1f1b"])),
    }
    return _draft(
        rng,
        model=_model(rng, layers),
        cluster=_cluster(rng, [2, 2], 1, "far", tera=rng.choice((20, 60))),
        batch=rng.choice((8, 12, 16)),
        sequence=rng.choice((512, 1024)),
        search=search,
        tightness=rng.choice((None, 0.3, 0.5)),
        keep=("extra_warmup", "schedule", "placement_kind"),
    )


def _bubble(rng: random.Random) -> _Draft:
    """A forced pipeline at one site: the schedule decides."""
    layers = rng.choice((4, 6))
    pp = rng.choice((2, 2, 4))
    search: Document = {
        "pp": [pp],
        "dp": [1] if rng.random() < 0.7 else [2],
        "micro_batch_size": [1, 2],
    }
    if rng.random() < 0.5:
        search["tp"] = [1]
    if rng.random() < 0.3:
        search["schedule"] = rng.sample(_ALL["schedule"], 4)
    if rng.random() < 0.3:
        search["schedule"] = rng.sample(("gpipe", "1f1b", "interleaved"), 2)
    if rng.random() < 0.2:
        search["schedule"] = rng.choice((["zbv", "dualpipe_v"], ["dualpipe_v", "1f1b"]))
    return _draft(
        rng,
        model=_model(rng, layers),
        cluster=_cluster(rng, [8, 4], 2, rng.choice(("slow", "thin", "fast"))),
        batch=rng.choice((4, 8, 12)),
        sequence=rng.choice((512, 1024, 2048)),
        search=search,
        tightness=_tight(rng),
        keep=("schedule",),
    )


def _state(rng: random.Random) -> _Draft:
    """Large weights and little memory: sharding and expert parallelism decide."""
    layers = rng.randint(2, 4)
    model = _model(rng, layers, moe=rng.random() < 0.6)
    model |= {"hidden_size": 2048, "num_heads": 8, "num_kv_heads": 8, "ffn_hidden_size": 8192}
    if "num_experts" in model:
        model |= {"num_experts": 8, "expert_ffn_hidden_size": 4096}
        model["shared_expert_ffn_hidden_size"] = rng.choice((0, 2048))
    search: Document = {"micro_batch_size": [1]}
    if rng.random() < 0.5:
        search["pp"] = [1] if rng.random() < 0.5 else [1, 2]
    return _draft(
        rng,
        model=model,
        cluster=_cluster(rng, [4, rng.choice((2, 4))], rng.choice((2, 4)), "medium"),
        batch=rng.choice((4, 8)),
        sequence=rng.choice((128, 256)),
        search=search,
        tightness=rng.choice((0.0, 0.01, 0.03, 0.1, 0.3)),
        keep=("sharding",),
    )


def _activations(rng: random.Random) -> _Draft:
    """Long sequences and little memory: recompute, context parallelism and splits decide."""
    layers = rng.choice((2, 3, 4, 5))
    sequence = rng.choice((8192, 16384))
    search: Document = {"dp": [1] if rng.random() < 0.5 else [1, 2]}
    if rng.random() < 0.4:
        search["pp"] = [2]
    if rng.random() < 0.3:
        search["cp"] = [2]
    return _draft(
        rng,
        model=_model(rng, layers),
        cluster=_cluster(rng, [4, rng.choice((2, 4))], rng.choice((1, 2, 4)), "fast"),
        batch=rng.choice((4, 8)),
        sequence=sequence,
        search=search,
        tightness=rng.choice((0.0, 0.01, 0.03, 0.1, 0.3, None)),
        keep=("recompute",),
    )


def _replicas(rng: random.Random) -> _Draft:
    """So many forced replicas that no site holds them: data parallelism between sites."""
    dp = rng.choice((3, 4, 6))
    search: Document = {
        "dp": [dp],
        "placement_kind": ["dp-out"] if rng.random() < 0.5 else ["dp-out", "mixed"],
        "dp_replicate": [r for r in (2, 3, 4, 6) if dp % r == 0],
        "tp": [1],
    }
    gpus = [dp - 1, dp - 2] if rng.random() < 0.5 else [dp - 2, dp - 2, rng.randint(1, 3)]
    return _draft(
        rng,
        model=_model(rng, rng.randint(2, 4)),
        cluster=_cluster(rng, gpus, 1, rng.choice(("slow", "medium", "fast", "far"))),
        batch=dp * rng.choice((1, 2, 4)),
        sequence=rng.choice((128, 512, 1024)),
        search=search,
        tightness=_tight(rng),
        keep=("sync", "placement_kind"),
    )


def _mixture(rng: random.Random) -> _Draft:
    """Pipelines and replicas over three unequal sites."""
    search: Document = {
        "pp": [2],
        "dp": [2] if rng.random() < 0.6 else [3],
        "tp": [1],
        "placement_kind": rng.choice((["mixed"], ["mixed", "pp-out"], ["mixed", "dp-out"])),
    }
    gpus = rng.choice(([2, 2, 1], [3, 2], [1, 2, 2], [3, 3], [2, 1, 3]))
    return _draft(
        rng,
        model=_model(rng, rng.choice((2, 3, 4))),
        cluster=_cluster(rng, gpus, 1, rng.choice(("medium", "fast", "far", "thin"))),
        batch=search["dp"][0] * rng.choice((1, 2, 3, 4)),
        sequence=rng.choice((128, 512)),
        search=search,
        tightness=_tight(rng),
        keep=("placement_kind",),
    )


def _spanning(rng: random.Random) -> _Draft:
    """Shard groups may reach over sites."""
    dp = rng.choice((2, 4))
    search: Document = {
        "dp": [dp],
        "dp_shard": [dp],
        "shard_across_sites": True,
        "tp": [1],
        "pp": rng.choice(([1], [2], [1, 2])),
    }
    gpus = rng.choice(([dp, dp - 1, 1], [dp + 1, dp - 1, 2], [dp - 1, dp - 1, 2]))
    return _draft(
        rng,
        model=_model(rng, rng.choice((2, 3, 4))),
        cluster=_cluster(rng, gpus[: rng.choice((2, 3))], 1, rng.choice(("fast", "far"))),
        batch=dp * rng.choice((1, 2, 4)),
        sequence=rng.choice((128, 512)),
        search=search,
        tightness=rng.choice((0.0, 0.03, 0.2, None)),
        keep=("sharding",),
    )


def _width(rng: random.Random) -> _Draft:
    """A batch too small for many replicas: tensor, context and expert parallelism."""
    node = rng.choice((2, 4))
    search: Document = {"virtual_stages": [1]}
    model = _model(rng, rng.choice((2, 3)), moe=rng.random() < 0.6)
    model |= {"hidden_size": 2048, "num_heads": 8, "num_kv_heads": 4, "ffn_hidden_size": 8192}
    cluster = _cluster(rng, [node, 2 * node], node, rng.choice(("slow", "medium")), tera=20)
    for site in cluster["sites"]:
        site["gpu"] |= {"scale_up_bytes_per_s": 450e9}
    return _draft(
        rng,
        model=model,
        cluster=cluster,
        batch=rng.choice((2, 4)),
        sequence=rng.choice((1024, 8192)),
        search=search,
        tightness=_tight(rng),
        keep=(),
    )


def _hopeless(rng: random.Random) -> _Draft:
    """Any of the others, with so little memory that few plans or none fit."""
    draft = rng.choice((_free, _bubble, _state, _activations))(rng)
    return draft._replace(tightness=rng.choice((-1.0, -1.0, 0.0, 0.001)))


def _network(rng: random.Random) -> _Draft:
    """Three sites of which at least two share the uplink of a hub, and experts on two nodes."""
    pp, dp, kinds = rng.choice(
        (
            (1, 4, ["dp-out"]),
            (1, 6, ["dp-out"]),
            (2, 2, ["pp-out"]),
            (2, 4, ["mixed"]),
            (2, 4, ["mixed", "dp-out", "pp-out"]),
        )
    )
    gpus = [rng.choice((2, 4)) for _ in range(3)]
    cluster = _cluster(rng, gpus, 1, "fast")
    cluster["hubs"], cluster["links"] = [{"name": "metro"}], []
    remote = "site2"
    if rng.random() < 0.9:
        remote = "exchange"
        cluster["hubs"].append({"name": remote})
    near = ["site0", "site1"] if rng.random() < 0.8 else ["site0"]
    far = [name for name in ("site1", "site2") if name not in near and name != remote]
    ends = [("metro", remote), *((name, "metro") for name in near)]
    ends += [(name, remote) for name in far]
    speed = rng.choice(("medium", "far"))
    for source, target in ends:
        trunk = source == "metro"
        cluster["links"].append(_link(rng, source, target, speed if trunk else "fast"))
    model = _model(rng, rng.choice((2, 3)), moe=True)
    model |= {"num_experts": 8, "experts_per_token": 4}
    model |= {"num_routing_groups": 2, "routing_groups_per_token": 1}
    search: Document = {
        "tp": [1],
        "cp": [1],
        "ep": [2],
        "pp": [pp],
        "dp": [dp],
        "micro_batch_size": [1],
        "virtual_stages": [1],
        "schedule": [rng.choice(("gpipe", "1f1b", "1f1b", "zb_h1"))],
        "extra_warmup": [0, 1],
        "placement_kind": kinds,
    }
    return _draft(
        rng,
        model=model,
        cluster=cluster,
        batch=dp * rng.choice((1, 2)),
        sequence=rng.choice((128, 512)),
        search=search,
        tightness=rng.choice((None, None, 0.3, 0.05)),
        keep=("placement_kind",),
    )


def _turns(rng: random.Random, *, loops: bool) -> _Draft:
    """Stages on several sites, with links that several boundaries or both ways of a loop share."""
    pp = 3 if loops else rng.choice((3, 4))
    if loops:
        gpus = rng.choice(([2, 1], [1, 2], [2, 2]))
    else:
        gpus = [1, 1, 1] if pp == 3 else rng.choice(([1, 2, 1], [1, 1, 1, 1]))
    cluster = _cluster(rng, gpus, 1, "far", tera=rng.choice((10, 30)))
    names = [site["name"] for site in cluster["sites"]]
    ends = list(pairwise(names))
    cluster["hubs"] = []
    if not loops and rng.random() < 0.8:
        cluster["hubs"] = [{"name": "hub"}]
        ends = [(name, "hub") for name in names]
    cluster["links"] = []
    for source, target in ends:
        link = _link(rng, source, target, "far")
        link["bandwidth_gbps"] = rng.choice((0.5, 1, 2))
        link["protocols"] = link["protocols"][:1]
        cluster["links"].append(link)
    schedules = rng.choice(
        (["interleaved"], ["interleaved"], ["interleaved", "dora"])
        if loops
        else (["gpipe"], ["1f1b"], ["zb_h1"], ["interleaved"])
    )
    search: Document = {
        "pp": [pp],
        "tp": [1],
        "dp": [1],
        "micro_batch_size": [1],
        "placement_kind": ["pp-out", "mixed"],
        "virtual_stages": [2] if "interleaved" in schedules else [1],
        "schedule": schedules,
        "extra_warmup": [0, 2] if pp == 3 else [0],
        "overlap": [True],
    }
    return _draft(
        rng,
        model=_model(rng, rng.choice((6, 7)) if loops else 2 * pp),
        cluster=cluster,
        batch=6,
        sequence=rng.choice((512, 1024)),
        search=search,
        tightness=rng.choice((None, None, 0.3)),
        keep=("placement_kind", "virtual_stages"),
    )


def _fabric(rng: random.Random) -> _Draft:
    """Wide groups on slow NICs in one or two sites with zones."""
    node, sites = rng.choice((1, 2)), rng.choice((1, 2, 2))
    pp = rng.choice((1, 1, 2, 4))
    dp = rng.choice((8, 16) if sites == 1 else (4, 8))
    gpus = [max(2 * node, pp * dp // sites)] * sites
    cluster = _cluster(rng, gpus, node, "fast", tera=rng.choice((200, 1000)))
    if sites == 2:
        link = _link(rng, "site0", "site1", rng.choice(("medium", "far")))
        cluster["hubs"], cluster["links"] = [], [link]
        if rng.random() < 0.5:
            cluster["hubs"] = [{"name": "hub"}]
            link["to"] = "hub"
            cluster["links"].append(_link(rng, "hub", "site1", "fast"))
        for link in cluster["links"]:
            link |= {"distance_km": rng.choice((1, 30, 400)), "jitter_s": rng.choice((0.0, 1e-4))}
            link["loss"] = rng.choice((0.0, 1e-4, 1e-2))
            del link["delay_s"]
    for site in cluster["sites"]:
        zones = [z for z in (node, 2 * node, 4 * node) if z < site["num_gpus"]]
        site["zone_gpus"] = rng.choice([None, *zones, *zones])
        site["fabric_oversubscription"] = rng.choice((1.5, 3, 8))
        site["in_network_reduction"] = rng.choice(([], [], ["network"], ["scale_up"]))
        site["collective_chunks"] = rng.choice((1, 1, 2, 8))
        if rng.random() < 0.2:
            piece = {"step_s": 6e-6, "bytes_per_s": rng.choice((2e9, 10e9))}
            curve = {"tier": "network", "launch_s": 3e-5, "pieces": [piece]}
            site["measured"] = [curve | {"collective": name} for name in ("all_gather", "p2p")]
    model = _model(rng, rng.choice((4, 8)), moe=rng.random() < 0.4)
    search: Document = {
        "tp": [1],
        "cp": [1],
        "pp": [pp],
        "dp": [dp],
        "micro_batch_size": [1],
        "virtual_stages": [1],
        "schedule": [rng.choice(("gpipe", "1f1b"))],
        "recompute": ["none"],
        "extra_warmup": [0],
        "fixed_layers_per_stage": [model["num_layers"] // pp] * pp,
    }
    if "num_experts" in model:
        search["ep"] = [rng.choice((2, 4))]
        if rng.random() < 0.5:
            model |= {"num_experts": 8, "experts_per_token": 2}
            model |= {"num_routing_groups": 2, "routing_groups_per_token": 1}
    return _draft(
        rng,
        model=model,
        cluster=cluster,
        batch=dp * rng.choice((1, 2)),
        sequence=rng.choice((128, 512)),
        search=search,
        tightness=rng.choice((None, None, 0.3)),
        keep=("sharding",),
    )


_THEMES: tuple[Callable[[random.Random], _Draft], ...] = (
    _free,
    _latency,
    _bubble,
    _state,
    _activations,
    _replicas,
    _mixture,
    _spanning,
    _width,
    _hopeless,
)
