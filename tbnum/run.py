"""What `tbnum.read` gives: a run as its log has it, with a report, and how a notebook shows it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tbnum.log import reader, scalar_log
from tbnum.markup import escaped, shown
from tbnum.report import Report
from tbnum.report_page import section

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["ReportText", "Run", "ScalarRun"]

PLOTTED = ("loss", "loss_scale", "grad_norm")
LOGARITHMIC = {"loss_scale": 2, "grad_norm": 10, "grad_norm_clipped": 10, "param_norm": 10, "update_norm": 10}


class ReportText(str):
    """A report in words, which a notebook shows with its charts."""

    html: str

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return shown(self.html)


class Run(reader.Run):
    """One training run: `steps`, `events`, `findings`, `tensors`, `histograms`, `meta`. Read when first used."""

    def report(self, since: int | None = None) -> ReportText:
        """As the command `tbnum report` prints it, from step `since` on. A notebook shows it with charts.

        Raises:
            ValueError: the run has no step from `since` on.
        """
        from tbnum.command.printing import print_report  # the command's libraries are for who asks for it

        _check_since(self, since)
        report = Report.of(self.name, self, since)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            print_report(report, str(self.folder))
        text = ReportText(printed.getvalue().rstrip())
        text.html = f"<h3>{escaped(report.title)}</h3>{section(report)}"
        return text

    def plot(self, columns: Sequence[str] = PLOTTED) -> Figure:
        """The columns over the steps, one below the other, with skipped steps marked, by matplotlib.

        Of the default columns those that the run has.

        Raises:
            KeyError: a column that there is not.
            ValueError: a text, or no column at all, in place of a list of names.
            ImportError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError("run.plot() draws with matplotlib: pip install 'tbnum[plot]'") from None

        steps = self.steps
        if isinstance(columns, str) or not columns:
            raise ValueError(f"columns is {columns!r}; give a list of names, as {[columns or 'loss']}.")
        if columns is PLOTTED:
            columns = [name for name in columns if name in steps and not np.isnan(steps[name]).all()] or ["loss"]
        drawn = [steps[name] for name in columns]
        figure = Figure(figsize=(9, 2.2 * len(columns)), layout="constrained")
        axes = figure.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
        skipped = steps["step"][steps["skipped"]] if "skipped" in steps else ()
        for axis, name, values in zip(axes, columns, drawn, strict=True):
            axis.plot(steps["step"], values, linewidth=0.8)
            for step in skipped:
                axis.axvline(step, color="tab:red", alpha=0.3, linewidth=0.8)
            if base := LOGARITHMIC.get(name.split("/")[-1]):
                axis.set_yscale("log", base=base)
            axis.set_ylabel(name)
        axes[-1].set_xlabel("step")
        return figure

    def to_pandas(self) -> pandas.DataFrame:
        """The columns as a data frame, with the steps as its index.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("run.to_pandas() needs pandas: pip install pandas") from None
        columns: dict[str, Any] = dict(self.steps)
        index = pandas.Index(columns.pop("step", ()), name="step")
        return pandas.DataFrame(columns, index=index)

    def _repr_html_(self) -> str:
        report = Report.of(self.name, self)
        return shown(f"<h3>{escaped(report.title)}</h3>{section(report)}")


def _check_since(run: reader.Run, since: Any) -> None:
    if since is None:
        return
    if isinstance(since, bool) or not isinstance(since, (int, np.integer)):
        raise ValueError(f"since is {since!r}; it has to be the number of a step.")
    number = run.steps.get("step", np.empty(0, np.int64))
    if not len(number) or since > number[-1]:
        last = f"the last one is {number[-1]}" if len(number) else "there is none"
        raise ValueError(f"since is {since}; run {run.name!r} has no step from there on: {last}.")


class ScalarRun(Run, scalar_log.ScalarRun):
    """A run that never used tbnum, read from the scalars that it left for TensorBoard."""
