"""Read a plan or a sweep folder and write its page and pictures."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from planner.instance.errors import InputError
from planner.instance.load import load_instance
from planner.instance.text import LARGEST_DOCUMENT, read_json
from planner.report.html.explanation import explanation_tables
from planner.report.html.plan_report import plan_report
from planner.report.html.plan_source import plan_source
from planner.report.html.sweep_report import sweep_report
from planner.report.output import OutputError, check_writable, write_atomically
from planner.report.sweeps.table import SweepTable, read_sweep


def write_report(
    source: Path,
    output: Path,
    *,
    instance: str | None = None,
    explanation: Path | None = None,
    figures: Path | None = None,
) -> list[Path]:
    """Write the page of a plan or of a sweep.

    Parameters
    ----------
    source
        A solve document, a bare plan or a point of a sweep; or the folder of a sweep.
    output
        The page.
    instance
        Path or name of the instance of a plan; None = the one in its document.
    explanation
        File of ``planner explain --json`` for the same plan.
    figures
        Folder for the pictures of a sweep; made if it is not there.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    InputError
        If something that is read is wrong, or an option does not go with the source.
    RefusedPlanError
        If the plan breaks a rule.
    OutputError
        If a file cannot be written.
    """
    if source.is_dir():
        for option, value in (("--instance", instance), ("--explanation", explanation)):
            if value is not None:
                raise InputError(option, f"goes with a plan, and {source} is a folder")
        check_writable(output)
        table = read_sweep(source)
        written = [] if figures is None else _write_figures(table, figures)
        write_atomically(output, sweep_report(table))
        return [*written, output]
    if figures is not None:
        raise InputError("--figures", f"goes with the folder of a sweep, and {source} is none")
    for read in (source, explanation):
        if read is not None and output.exists() and read.exists() and output.samefile(read):
            raise InputError(str(output), "is a file that is read")
    check_writable(output, not_over=instance)
    document = read_json(source, largest=LARGEST_DOCUMENT)
    found = plan_source(document, None if instance is None else load_instance(instance))
    tables = None
    if explanation is not None:
        tables = explanation_tables(read_json(explanation, largest=LARGEST_DOCUMENT), found.plan)
    write_atomically(output, plan_report(found, tables))
    return [output]


def _write_figures(table: SweepTable, folder: Path) -> list[Path]:
    try:
        from planner.report.figures.drawings import encoded, sweep_figures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        hint = "pip install 'scaleacross-planner[report]'"
        raise InputError("--figures", f"needs matplotlib, which is not installed: {hint}") from None
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        if error.errno == errno.EEXIST or os.path.exists(folder):
            raise InputError(str(folder), "is a file, not a folder") from None
        raise OutputError(str(folder), error) from error
    written = []
    for name, figure in sweep_figures(table):
        for form in ("png", "svg"):
            path = folder / f"{name}.{form}"
            write_atomically(path, encoded(figure, form))
            written.append(path)
    return written
