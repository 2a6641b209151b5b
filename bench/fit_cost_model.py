"""Fit the constants of the cost model to measured runs, and say how well the runs identify them.

python bench/fit_cost_model.py fit              # rewrites the shipped tables
python bench/fit_cost_model.py compare          # a fresh fit against the shipped tables
python bench/fit_cost_model.py cross-validate   # folds over configurations, models left out
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.cost_fit import (  # noqa: E402
    GPU_ROLES,
    SHAPE_ROLES,
    STACK_ROLES,
    Fit,
    Key,
    Model,
    fit,
    fit_rows,
    gpu_type,
    prior,
    refit,
)
from planner.instance import catalog  # noqa: E402

RUNS = ROOT / "bench/data/published_runs.json"
TABLE = ROOT / "planner/cost/efficiency.json"
STACKS = ROOT / "planner/instance/catalog/stacks.json"
STEPS = 8
FOLD_STEPS = 3
"""Steps of a fold, which starts from the fit to all rows."""
IDENTIFIED = 0.7
"""A constant counts as identified if the data narrow its prior at least to this share."""
SAME_AS = {"H200": "H100", "H800": "H100", "GH200": "H100"}
"""GPUs that take what is not fitted for them from another one with the same die."""


def fresh_fit(runs: Path) -> tuple[Model, Fit]:
    """Fit from the priors."""
    model = Model(fit_rows(runs))
    return model, fit(model, model.start(), STEPS)


def identified(model: Model, result: Fit) -> dict[Key, float]:
    """Posterior over prior width of every constant."""
    return {
        key: float(deviation / width)
        for key, deviation, width in zip(model.keys, result.deviations, model.width, strict=True)
    }


def tables(model: Model, result: Fit) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents of ``efficiency.json`` and ``stacks.json``; constants have three digits."""
    narrowed = identified(model, result)
    values = {key: model.value(result.x, key) for key in model.keys}

    def constant(key: Key) -> tuple[float, bool]:
        if key not in values:
            return prior(key).value, False
        return values[key], narrowed[key] <= IDENTIFIED

    shape = {role: float(f"{constant((role, 'all'))[0]:.3g}") for role in SHAPE_ROLES}
    shape["launch_s"] = shape.pop("launch")
    rows = [_default_row(p) for p in ("bf16", "fp8", "fp8_rowwise", "mxfp8", "nvfp4")]
    for name in dict.fromkeys(gpu_type(n) for n in catalog.names("gpus")):
        rows += _gpu_rows(name, constant)
    efficiency = {
        "source": "python bench/fit_cost_model.py fit, on bench/data/published_runs.json "
        f"({len(model.rows)} runs). 'fitted' names the constants that the runs identify; the "
        "others stay near their priors (bench/cost_fit.py) or are those of what 'source' names.",
        "shape": shape,
        "rows": rows,
    }
    stacks = json.loads(STACKS.read_text("utf-8"))
    for name, entry in stacks.items():
        found = {role: constant((role, name)) for role in STACK_ROLES}
        entry |= {role: float(f"{value:.3g}") for role, (value, _) in found.items()}
        entry["fitted"] = [role for role, (_, known) in found.items() if known]
    return efficiency, stacks


def _gpu_rows(name: str, constant: Any) -> list[dict[str, Any]]:
    """Rows of one GPU type, one for each precision that it states."""
    full = next(n for n in catalog.names("gpus") if gpu_type(n) == name)
    peaks = catalog.fields("gpus", full)["peak_flops"]
    precisions = [p for p in peaks if p != "fp16"] + ["fp8_rowwise"] * ("fp8" in peaks)
    die = SAME_AS.get(name, name)
    rows = []
    for precision in precisions:
        own, known = constant(("gemm", f"{name} {precision}"))
        source = ""
        if not known and die != name:
            other, known_die = constant(("gemm", f"{die} {precision}"))
            if known_die:
                own, source = other, f"as {die}"
        gpu = {role: constant((role, die)) for role in GPU_ROLES}
        fitted = ["gemm"] * known + [role for role in GPU_ROLES if gpu[role][1] and die == name]
        if not known and not source:
            own, source = _nearest_precision(name, precision, constant)
        rows.append(
            {
                "gpu": name,
                "precision": precision,
                "gemm": float(f"{own:.3g}"),
                "grouped_gemm": float(f"{own * gpu['grouped'][0]:.3g}"),
                "attention": float(f"{gpu['attention'][0]:.3g}"),
                "memory": float(f"{gpu['memory'][0]:.3g}"),
                "fitted": fitted,
                "source": source or "fit",
            }
        )
    return rows


def _nearest_precision(name: str, precision: str, constant: Any) -> tuple[float, str]:
    """The constant of a fitted precision of the same GPU, else the prior."""
    if precision == "fp8_rowwise":
        return constant(("gemm", "H100-96 fp8_rowwise"))[0], "as H100-96"
    for other in ("mxfp8", "fp8", "bf16"):
        value, known = constant(("gemm", f"{name} {other}"))
        if known and other != precision:
            return min(
                value, prior(("gemm", f"{name} {precision}")).value
            ), f"as {other}, at most the prior"
    return prior(("gemm", f"{name} {precision}")).value, "prior"


def _default_row(precision: str) -> dict[str, Any]:
    gemm = {"bf16": 0.65, "fp8": 0.55, "fp8_rowwise": 0.3, "mxfp8": 0.5, "nvfp4": 0.4}[precision]
    return {
        "gpu": "default",
        "precision": precision,
        "gemm": gemm,
        "grouped_gemm": round(0.65 * gemm, 3),
        "attention": 0.4,
        "memory": 0.75,
        "fitted": [],
        "source": "assumed: low among the fitted GPUs",
    }


def errors(model: Model, predicted: Any, rows: Any = None) -> Any:
    """Absolute percentage errors as fractions."""
    found = np.abs(predicted / np.exp(model.log_measured) - 1)
    return found if rows is None else found[rows]


@click.group()
def main() -> None:
    """Constants of the cost model."""


@main.command("fit")
@click.option("--runs", type=Path, default=RUNS)
def fit_command(runs: Path) -> None:
    """Fit and rewrite the shipped tables."""
    started = time.perf_counter()
    model, result = fresh_fit(runs)
    efficiency, stacks = tables(model, result)
    rows = efficiency.pop("rows")
    body = json.dumps(efficiency, indent=2)[:-2]
    lines = ",\n    ".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{body},\n  "rows": [\n    {lines}\n  ]\n}}\n', "utf-8")
    STACKS.write_text(json.dumps(stacks, indent=2) + "\n", "utf-8")
    _describe(model, result)
    click.echo(f"{time.perf_counter() - started:.0f} s")


@main.command()
@click.option("--runs", type=Path, default=RUNS)
def compare(runs: Path) -> None:
    """Fit anew and compare with the shipped tables; exit 1 if a constant differs by over 1 %."""
    model, result = fresh_fit(runs)
    efficiency, stacks = tables(model, result)
    shipped = {
        **json.loads(TABLE.read_text("utf-8")),
        "stacks": json.loads(STACKS.read_text("utf-8")),
    }
    worst = _difference(shipped, {**efficiency, "stacks": stacks})
    click.echo(f"largest relative difference {worst:.4f}")
    raise SystemExit(worst > 0.01)


def _difference(a: Any, b: Any) -> float:
    if isinstance(a, dict):
        return max((_difference(a[k], b[k]) for k in a), default=0.0)
    if isinstance(a, list):
        return max((_difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, int | float):
        return abs(a - b) / max(abs(a), abs(b), 1e-12)
    return 0.0 if a == b else 1.0


@main.command("cross-validate")
@click.option("--runs", type=Path, default=RUNS)
@click.option("--folds", default=10)
@click.option("--seed", default=1)
def cross_validate(runs: Path, folds: int, seed: int) -> None:
    """Leave out configurations, then each model of each GPU type."""
    model, result = fresh_fit(runs)
    inside = errors(model, result.predicted_s)
    click.echo(f"in-sample: mean {inside.mean():.4f} median {np.median(inside):.4f}")
    names = sorted({row.configuration for row in model.rows})
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[i]: k % folds for k, i in enumerate(order)}
    fold = np.array([fold_of[row.configuration] for row in model.rows])
    outside = np.empty(len(model.rows))
    for k in range(folds):
        left_out = fold == k
        part = fit(model, result.x, FOLD_STEPS, ~left_out)
        outside[left_out] = errors(model, part.predicted_s, left_out)
    click.echo(
        f"{folds} folds over {len(names)} configurations: mean {outside.mean():.4f} "
        f"({outside.mean() / inside.mean():.2f} x) median {np.median(outside):.4f} "
        f"({np.median(outside) / np.median(inside):.2f} x)"
    )
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, row in enumerate(model.rows):
        groups[row.gpu, row.run.model.name or "?"].append(i)
    left: list[float] = []
    for (gpu, name), members in sorted(groups.items()):
        mask = np.ones(len(model.rows), dtype=bool)
        mask[members] = False
        predicted = model.predict(refit(model, result, mask), refresh=True, rows=members)
        found = np.abs(predicted / np.exp(model.log_measured[members]) - 1)
        left += list(found)
        click.echo(
            f"  without {name} on {gpu}: n {len(members)} mean {found.mean():.3f} "
            f"(in-sample {inside[members].mean():.3f})"
        )
    click.echo(f"each model left out: mean {np.mean(left):.4f} median {np.median(left):.4f}")


def _describe(model: Model, result: Fit) -> None:
    """Print errors by source and how far the data narrow each prior."""
    found = errors(model, result.predicted_s)
    sources: dict[str, list[float]] = defaultdict(list)
    for row, error in zip(model.rows, found, strict=True):
        sources[row.run.family].append(float(error))
    for source, values in sorted(sources.items()):
        click.echo(
            f"{source[:60]:60s} n {len(values):3d} mean {np.mean(values):.3f} "
            f"median {np.median(values):.3f}"
        )
    click.echo(
        f"{'all':60s} n {len(found):3d} mean {found.mean():.4f} median {np.median(found):.4f}"
    )
    narrowed = identified(model, result)
    known = [key for key in model.keys if narrowed[key] <= IDENTIFIED]
    click.echo(f"{len(known)} constants identified of {len(model.keys)} that rows could depend on")
    for key, deviation in zip(model.keys, result.deviations, strict=True):
        value, start = model.value(result.x, key), prior(key).value
        mark = "" if narrowed[key] <= IDENTIFIED else "  not identified"
        click.echo(
            f"  {key[0]:15s} {key[1]:22s} {value:9.4g} prior {start:9.4g} "
            f"sd {deviation:.3f} of {prior(key).width:.2f}{mark}"
        )


if __name__ == "__main__":
    main()
