"""The ``planner`` command: reads arguments, calls the library, prints, picks the exit code.

Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from planner import __version__

EPILOG_EXIT = (
    "Exit codes: 0 proven, or within the asked gap; 1 internal error; 2 bad usage or invalid "
    "input; 3 infeasible; 4 a checked plan, not proven; 5 no plan found; 130 interrupted."
)


@dataclass
class State:
    """What holds for one run of the command."""

    debug: bool = False


def _seconds(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter(f"{value} is not a number of seconds above 0.")
    return value


def _fraction(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{value} is not a fraction from 0 to 1 (0.01 is 1 %).")
    return value


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(State).debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_debug,
    help="Print the traceback of an internal error.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on standard output."
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="'planner COMMAND --help' shows the options of a command and examples.",
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="planner")
@debug_option
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Prove the best training plan of a large model over several datacenters."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return 2
    return 0


@cli.command(epilog=EPILOG_EXIT)
@click.argument("instance")
@click.option("-o", "--output", type=Path, metavar="FILE", help="Write the solve document.")
@json_option
@click.option(
    "--time-limit", type=float, callback=_seconds, metavar="S", help="Stop after S seconds."
)
@click.option(
    "--gap",
    type=float,
    callback=_fraction,
    default=0.0,
    metavar="G",
    help="Stop once the plan is proven within this fraction of the best.  [default: 0]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cp-sat", "cbc", "highs"]),
    default="auto",
    show_default=True,
    help="Solver of the models.",
)
@click.option(
    "--formulation",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="How a case becomes models: plain (one), strong (one per part), auto (by its size).",
)
@click.option("--heuristic", is_flag=True, help="Look for a good plan; prove only a bound.")
@click.option(
    "--certify", is_flag=True, help="Ask a second engine about every case that rests on one."
)
@click.option(
    "--schedule",
    type=click.Choice(["templates", "synthesize"]),
    default="templates",
    show_default=True,
    help="Also find an op order of its own for the placement found, with its own bound.",
)
@click.option(
    "--schedule-csv",
    type=Path,
    metavar="FILE",
    help="Write the synthesised order as a schedule file of PyTorch and torchtitan.",
)
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Allow only this value of a choice; repeat a key to allow several.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--workers", type=click.IntRange(1, 4096), default=4, show_default=True)
@debug_option
def solve(
    instance: str,
    output: Path | None,
    as_json: bool,
    time_limit: float | None,
    gap: float,
    backend: str,
    formulation: str,
    heuristic: bool,
    certify: bool,
    schedule: str,
    schedule_csv: Path | None,
    fixes: tuple[str, ...],
    seed: int,
    workers: int,
) -> int:
    r"""Find the plan with the shortest iteration and prove it.

    INSTANCE is a JSON file or the name of a shipped instance (see 'planner instances').

    \b
    Examples:
      planner solve dense-17b-2-buildings
      planner solve job.json -o plan.json --time-limit 600 --gap 0.01
      planner solve job.json --fix pp=8 --fix schedule=1f1b --fix schedule=zb_h1
      planner solve job.json --schedule synthesize --schedule-csv schedule.csv
      planner solve job.json --fix layers_per_stage=12,12,12,12 --json > plan.json
    """
    from planner.instance.errors import InputError, nearest
    from planner.instance.fixes import with_fixes
    from planner.instance.load import load_instance
    from planner.report.exit_codes import exit_code
    from planner.report.output import check_writable, json_text, same_file, write_atomically
    from planner.report.progress import reporter

    if schedule_csv is not None and schedule != "synthesize":
        raise InputError("--schedule-csv", "needs --schedule synthesize")
    for path in (output, schedule_csv):
        if path is not None:
            check_writable(path, not_over=instance)
    if output is not None and schedule_csv is not None and same_file(output, schedule_csv):
        raise InputError("--schedule-csv", "is the file of --output")
    job = with_fixes(load_instance(instance), fixes)
    from planner.search.case_solvers import FORMULATIONS
    from planner.search.solve import solve as run

    if formulation not in FORMULATIONS:
        raise InputError(
            "--formulation",
            f"no formulation is named '{formulation}'; known: {', '.join(FORMULATIONS)}",
            nearest(formulation, FORMULATIONS),
        )
    with reporter(sys.stderr) as progress:
        result = run(
            job,
            time_limit_s=time_limit,
            gap=gap,
            backend=backend,
            formulation=formulation,
            heuristic=heuristic,
            certify=certify,
            schedule=schedule,
            seed=seed,
            workers=workers,
            progress=progress,
        )
    try:
        if output is not None:
            write_atomically(output, json_text(result.to_json()))
            click.echo(f"written: {output}", err=True)
        if schedule_csv is not None and result.synthesized is not None:
            write_atomically(schedule_csv, result.synthesized.csv())
            click.echo(f"written: {schedule_csv}", err=True)
    finally:
        if as_json:
            _print_json(result.to_json())
        else:
            from planner.report.text import render_solve

            _print_report(lambda console: render_solve(result, console))
    return exit_code(result, gap)


@cli.command(epilog="Exit codes: 0 accepted; 1 refused; 2 bad usage or invalid input.")
@click.argument("instance")
@click.argument("plan", type=Path)
@json_option
@debug_option
def check(instance: str, plan: Path, as_json: bool) -> int:
    r"""Check a plan and recompute its iteration time.

    PLAN is a solve document or a bare plan object. Every rule of the plan space is checked; no
    solver is used.

    \b
    Examples:
      planner check dense-17b-2-buildings plan.json
      planner check job.json hand-written-plan.json --json
    """
    from planner.check import check_plan
    from planner.instance import load_instance
    from planner.instance.text import LARGEST_DOCUMENT, read_json
    from planner.plan import parse_plan

    job = load_instance(instance)
    report = check_plan(job, parse_plan(read_json(plan, largest=LARGEST_DOCUMENT)))
    if as_json:
        _print_json(report.to_json())
    else:
        from planner.report.text import render_check

        _print_report(lambda console: render_check(report, console))
    return 0 if report.feasible else 1


@cli.command(
    epilog="Exit codes: 0 accepted; 1 refused; 2 bad usage or invalid input; 130 interrupted."
)
@click.argument("instance")
@click.argument("plan", type=Path)
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="KEY=VALUE",
    help="A restriction that the document was solved with; repeat it as for 'solve'.",
)
@json_option
@debug_option
def verify(instance: str, plan: Path, fixes: tuple[str, ...], as_json: bool) -> int:
    r"""Re-derive the proof in a solve document from the instance.

    PLAN is a solve document with its certificate. The plan is priced again, the boxes must cover
    the space, and every verdict must follow; no solver is used. Where only a solver stands behind
    a verdict the report says which.

    \b
    Examples:
      planner verify dense-17b-2-buildings plan.json
      planner verify job.json plan.json --fix pp=8 --json
    """
    from planner.instance import load_instance
    from planner.instance.fixes import with_fixes
    from planner.instance.text import LARGEST_DOCUMENT, read_json
    from planner.verification.verify import verify as run

    job = with_fixes(load_instance(instance), fixes)
    verification = run(job, read_json(plan, largest=LARGEST_DOCUMENT))
    if as_json:
        _print_json(verification.to_json())
    else:
        from planner.report.verification import render_verification

        _print_report(lambda console: render_verification(verification, console))
    return 0 if verification.accepted else 1


@cli.command(
    epilog="Exit codes: 0 done; 1 refused by the checker, or error; 2 bad usage or invalid input; "
    "130 interrupted, with what is done."
)
@click.argument("instance")
@click.argument("plan", type=Path)
@json_option
@click.option(
    "--time-limit",
    type=float,
    callback=_seconds,
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds for all solves together.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cp-sat", "cbc", "highs"]),
    default="auto",
    show_default=True,
    help="Solver of the models.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--workers", type=click.IntRange(1, 4096), default=4, show_default=True)
@debug_option
def explain(
    instance: str,
    plan: Path,
    as_json: bool,
    time_limit: float,
    backend: str,
    seed: int,
    workers: int,
) -> int:
    r"""Say why a plan is what it is, and what would be better or worse.

    PLAN is a solve document or a bare plan object. Shows what binds it, the best plan under each
    forced alternative and its price, what more of each resource would gain, and near-ties. Every
    alternative is solved; rows that are not proven in time say so.

    \b
    Examples:
      planner explain dense-17b-2-buildings plan.json
      planner explain job.json plan.json --time-limit 1800 --json > why.json
    """
    from planner.explanation.explain import explain as run
    from planner.instance import load_instance
    from planner.instance.text import LARGEST_DOCUMENT, read_json
    from planner.plan import parse_plan
    from planner.report.exit_codes import ExitCode
    from planner.report.progress import reporter

    job = load_instance(instance)
    explained = parse_plan(read_json(plan, largest=LARGEST_DOCUMENT))
    with reporter(sys.stderr) as progress:
        explanation = run(
            job,
            explained,
            time_limit_s=time_limit,
            backend=backend,
            seed=seed,
            workers=workers,
            progress=progress,
        )
    if as_json:
        _print_json(explanation.to_json())
    else:
        from planner.report.explanation import render_explanation

        _print_report(lambda console: render_explanation(explanation, console))
    return ExitCode.INTERRUPTED if explanation.limit == "interrupt" else 0


@cli.command("import", epilog="Exit codes: 0 done; 1 error; 2 bad usage or invalid input.")
@click.argument("kind")
@click.argument("files", nargs=-1, required=True, type=Path, metavar="FILE...")
@click.option("-o", "--output", type=Path, metavar="FILE", help="Write the fragment.")
@click.option(
    "--tier",
    type=click.Choice(["scale_up", "network"]),
    help="Tier that nccl-tests measured.  [default: scale_up where all ranks share a host]",
)
@json_option
@debug_option
def import_(
    kind: str, files: tuple[Path, ...], output: Path | None, tier: Any, as_json: bool
) -> int:
    r"""Fit measurements of a network to fields of an instance.

    KIND is nccl-tests, iperf3 or perftest. The result is a JSON fragment: fields to paste into a
    site or a link of an instance. Several files of one thing are fitted together.

    \b
    Examples:
      planner import nccl-tests all_reduce_perf.2gpu.txt all_reduce_perf.8gpu.json
      planner import iperf3 there.json back.json -o link.json
      planner import perftest ib_write_bw.txt ib_write_lat.txt --json
    """
    from planner.measured import import_measurements
    from planner.report.output import check_writable, json_text, write_atomically

    if output is not None:
        for file in files:
            check_writable(output, not_over=str(file))
    imported = import_measurements(kind, files, tier=tier)
    if output is not None:
        write_atomically(output, json_text(imported.fragment))
        click.echo(f"written: {output}", err=True)
    if as_json:
        _print_json(imported.fragment)
    else:
        from planner.report.network import render_import

        _print_report(lambda console: render_import(imported, console))
    return 0


@cli.command()
@click.argument("instance")
@json_option
@debug_option
def links(instance: str, as_json: bool) -> int:
    r"""Show what every protocol makes of every link, and why some are no choice.

    INSTANCE is a JSON file or the name of a shipped instance.

    \b
    Examples:
      planner links nemotron-340b-1000km
      planner links job.json --json
    """
    from planner.instance import load_instance
    from planner.report.network import describe_links, render_links

    document = describe_links(load_instance(instance))
    if as_json:
        _print_json(document)
    else:
        _print_report(lambda console: render_links(document, console))
    return 0


@cli.command(epilog="Exit codes: 0 done; 1 error; 2 bad usage or invalid input.")
@click.argument("runs", type=Path)
@json_option
@debug_option
def validate(runs: Path, as_json: bool) -> int:
    r"""Compare predicted with measured training runs.

    RUNS is a JSON file with one measured configuration a row. Time and memory are predicted with
    the code that 'solve' uses; measured fields are never read for a prediction.

    \b
    Examples:
      planner validate bench/data/published_runs.json
      planner validate my-runs.json --json > errors.json
    """
    from planner.report.progress import counter
    from planner.validation.validate import validate_runs

    with counter(sys.stderr, "predicting runs") as count:
        validation = validate_runs(runs, progress=count)
    if as_json:
        _print_json(validation.to_json())
    else:
        from planner.report.validation import render_validation

        _print_report(lambda console: render_validation(validation, console))
    return 0


@cli.command(epilog="Exit codes: 0 done; 1 refused by the checker; 2 bad usage or invalid input.")
@click.argument("instance")
@click.argument("plan", type=Path)
@json_option
@click.option("--trace", type=Path, metavar="FILE", help="Write a Chrome/Perfetto trace (JSON).")
@click.option("--svg", type=Path, metavar="FILE", help="Write a picture of the timeline.")
@debug_option
def simulate(instance: str, plan: Path, as_json: bool, trace: Path | None, svg: Path | None) -> int:
    r"""Let one iteration of a plan happen, event by event.

    PLAN is a solve document or a bare plan object. Reports the iteration time and how far Z is from
    it, the bubble, exposed communication, memory over time and the use of every link.

    \b
    Examples:
      planner simulate dense-17b-2-buildings plan.json
      planner simulate job.json plan.json --trace trace.json --svg timeline.svg
    """
    from planner.instance import load_instance
    from planner.instance.errors import InputError
    from planner.instance.text import LARGEST_DOCUMENT, read_json
    from planner.plan import parse_plan
    from planner.report.output import check_writable, json_text, write_atomically
    from planner.simulation.simulate import simulate as run

    for target in (trace, svg):
        if target is not None:
            check_writable(target, not_over=instance)
            if target.resolve() == plan.resolve() or (trace is not None and trace == svg):
                raise InputError(str(target), "each file needs a name of its own")
    job = load_instance(instance)
    record = trace is not None or svg is not None
    found = run(job, parse_plan(read_json(plan, largest=LARGEST_DOCUMENT)), record=record)
    if trace is not None:
        from planner.simulation.trace import chrome_trace

        write_atomically(trace, json_text(chrome_trace(found), indent=None))
        click.echo(f"written: {trace}", err=True)
    if svg is not None:
        from planner.simulation.svg import plan_picture

        write_atomically(svg, plan_picture(found))
        click.echo(f"written: {svg}", err=True)
    if as_json:
        _print_json(found.to_json())
    else:
        from planner.report.text import render_simulation

        _print_report(lambda console: render_simulation(found, console))
    return 0


@cli.command(epilog="Exit codes: 0 done; 1 refused by the checker; 2 bad usage or invalid input.")
@click.argument("source", type=Path, metavar="PLAN|DIR")
@click.option("-o", "--output", type=Path, metavar="FILE", required=True, help="The page to write.")
@click.option(
    "--instance",
    metavar="INSTANCE",
    help="Instance of the plan.  [default: the one in the solve document]",
)
@click.option(
    "--explanation",
    type=Path,
    metavar="FILE",
    help="What 'planner explain --json' says of the plan.",
)
@click.option(
    "--figures",
    type=Path,
    metavar="FOLDER",
    help="Also write the pictures of a sweep there, as PNG and SVG (needs matplotlib).",
)
@debug_option
def report(
    source: Path,
    output: Path,
    instance: str | None,
    explanation: Path | None,
    figures: Path | None,
) -> int:
    r"""Write a plan or a sweep as one HTML file that opens offline.

    PLAN is a solve document, a bare plan object or a point of a sweep; DIR is the folder of a
    sweep.

    \b
    Examples:
      planner report plan.json -o report.html
      planner report hand-written-plan.json --instance job.json -o report.html
      planner report sweep-folder -o report.html --figures pictures
    """
    from planner.report.html.write import write_report

    written = write_report(
        source, output, instance=instance, explanation=explanation, figures=figures
    )
    for path in written:
        click.echo(f"written: {path}", err=True)
    return 0


@cli.command(
    epilog="Exit codes: 0 done (failed points are rows); 1 error; 2 bad usage or invalid input; "
    "130 interrupted."
)
@click.argument("sweep")
@click.option(
    "-o", "--output", type=Path, required=True, metavar="DIR", help="Folder of the results."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    default=_cores,
    show_default="the cores at hand",
    help="Points side by side on this machine.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Solve on the cluster of a Dask scheduler.")
@click.option(
    "--local-cluster",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Start N Dask workers on this machine and solve there.",
)
@click.option("--shard", default="1/1", metavar="I/N", help="Only part I of N of the points.")
@click.option("--retry-failed", is_flag=True, help="Solve failed points again.")
@click.option("--dry-run", is_flag=True, help="Only list the points and estimate the time.")
@json_option
@debug_option
def sweep(
    sweep: str,
    output: Path,
    workers: int,
    scheduler: str | None,
    local_cluster: int | None,
    shard: str,
    retry_failed: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    r"""Solve a job over ranges of its fields, and write one table.

    SWEEP is a JSON file or the name of a shipped sweep (see docs/sweeps.md). Results are kept in
    DIR point by point: the same command continues after any end.

    \b
    Examples:
      planner sweep dense-17b-oversubscription -o out --dry-run
      planner sweep job-sweep.json -o out --workers 2
      planner sweep job-sweep.json -o out --shard 1/4
      planner sweep job-sweep.json -o out --scheduler tcp://host:8786
    """
    from planner.instance.errors import InputError
    from planner.report.progress import sweep_reporter
    from planner.report.sweep import render_dry_run, render_sweep
    from planner.sweeps.run import parse_shard
    from planner.sweeps.run import sweep as run

    if scheduler is not None and local_cluster is not None:
        raise InputError("--local-cluster", "give either this or --scheduler")
    part = parse_shard(shard)
    if dry_run:
        from planner.sweeps.dry_run import dry_run as plan_only

        dry = plan_only(sweep, output, workers=workers, shard=part, retry_failed=retry_failed)
        if as_json:
            _print_json(dry.to_json())
        else:
            _print_report(lambda console: render_dry_run(dry, console))
        return 0
    with sweep_reporter(sys.stderr) as progress:
        result = run(
            sweep,
            output,
            workers=workers,
            scheduler=scheduler,
            local_cluster=local_cluster,
            shard=part,
            retry_failed=retry_failed,
            progress=progress,
        )
    if as_json:
        _print_json(result.to_json())
    else:
        _print_report(lambda console: render_sweep(result, console))
    return 130 if result.interrupted else 0


@cli.command()
@debug_option
def schema() -> int:
    r"""Print the JSON schema of instance files, for editors.

    \b
    Example:
      planner schema > instance.schema.json
    """
    from planner.instance import json_schema

    _print_json(json_schema())
    return 0


@cli.command()
@json_option
@debug_option
def instances(as_json: bool) -> int:
    r"""List the shipped instances.

    \b
    Example:
      planner instances
    """
    from planner.instance import load_instance, shipped_names

    described = {name: load_instance(name).description for name in shipped_names()}
    if as_json:
        _print_json([{"name": name, "description": text} for name, text in described.items()])
    else:
        from planner.report.text import render_pairs

        _print_report(lambda console: render_pairs(described, console))
    return 0


@cli.command()
@json_option
@debug_option
def show_versions(as_json: bool) -> int:
    r"""Print versions, for bug reports.

    \b
    Example:
      planner show-versions
    """
    from planner.versions import versions

    found = versions()
    if as_json:
        _print_json(found)
    else:
        from planner.report.text import render_pairs

        _print_report(lambda console: render_pairs(found, console))
    return 0


def _print_json(document: Any) -> None:
    from planner.report.output import json_text, write_stdout

    write_stdout(json_text(document))


def _print_report(render: Callable[[Any], None]) -> None:
    from planner.report.output import write_stdout
    from planner.report.text import report_console

    console = report_console()
    with console.capture() as captured:
        render(console)
    write_stdout("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; every failure is one line on standard error."""
    state = State()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        outcome = cli.main(
            None if argv is None else list(argv),
            prog_name="planner",
            standalone_mode=False,
            obj=state,
        )
        return outcome if isinstance(outcome, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except click.UsageError as error:
        command = "planner" if error.ctx is None else error.ctx.command_path
        return _fail(f"error: {error.format_message()} (see '{command} --help')", 2)
    except Exception as error:  # noqa: BLE001 (the last resort)
        return _failure(error, state)


def _failure(error: Exception, state: State) -> int:
    """Report an error that a command raised."""
    from planner.backends import BackendUnavailableError
    from planner.instance.errors import InputError, one_line
    from planner.legality import RefusedPlanError
    from planner.report.output import OutputError
    from planner.sweeps.cluster import ClusterError

    if isinstance(error, InputError):
        return _fail(f"error: {error}", 2)
    if isinstance(error, BackendUnavailableError):
        return _fail(one_line(f"error: --backend: {error}"), 2)
    if isinstance(error, OutputError | RefusedPlanError | ClusterError):
        return _fail(f"error: {error}", 1)
    if state.debug:
        import traceback

        traceback.print_exception(error)
    hint = "" if state.debug else " (--debug shows the traceback)"
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _fail(one_line(f"internal error: {what}") + hint, 1)


def _fail(line: str, code: int) -> int:
    click.echo(" ".join(line.split("\n")), err=True)
    return code
