"""Describes the results of a study: as Markdown for optuna-dashboard, as text or as HTML."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from itertools import groupby
import re
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from optuna_treecv.reporting.evaluations import compare_trials
from optuna_treecv.reporting.evaluations import Compared
from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.evaluations import Frame
from optuna_treecv.reporting.evaluations import interval_in_words
from optuna_treecv.reporting.evaluations import plus_minus
from optuna_treecv.study.advice import advice_of
from optuna_treecv.study.advice import edges_of
from optuna_treecv.study.choice import Contest
from optuna_treecv.study.honest import corrected_by_folds
from optuna_treecv.study.records import facts_of_trial
from optuna_treecv.study.records import scores_of_trial

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; margin: 2rem 0 .75rem; overflow-wrap: anywhere; }
h2 { border-bottom: 1px solid #ddd; padding-bottom: .3rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0;
        font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #ccc; padding: .35rem .75rem; text-align: left; vertical-align: top; }
th { background: #f3f4f6; }
code, pre { font: .875em/1.5 ui-monospace, monospace; background: #f3f4f6; border-radius: 4px; }
code { padding: .1em .3em; }
pre { padding: .75rem 1rem; overflow-x: auto; }
"""

# A code span in Markdown, which starts and ends with the same number of backticks.
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")

# Text without a special meaning in Markdown. It has neither a period nor a colon, so it cannot be
# a link.
_WORDS = re.compile(r"(?:[^\W_]|(?<=[^\W_])_+(?=[^\W_])|[ ,()=+%/|-])*")

#: A description of each method by which folds are evaluated.
METHODS_IN_WORDS = {
    "treecv": "treecv (the folds share incremental training along one tree)",
    "chain": "chain (one model is trained forward in time)",
    "fit": "fit (the estimator is refitted per fold)",
    "exact": "exact (the models of all folds from sums over the rows)",
    "newton": "newton (the models of all folds are solved jointly)",
    "neighbors": "neighbors (one search for all values of n_neighbors and weights)",
    "kernel": "kernel (candidates share Gram matrices)",
    "boosting": "boosting (each fold's ensemble is grown once and scored at every n_estimators)",
    "bagging": "bagging (each fold's ensemble is grown once and scored at every n_estimators)",
    "forest": "forest (the trees of all folds are grown jointly)",
    "standard": "standard (one pass over the training rows of each fold)",
    "holdout": "holdout (only the first fold)",
    "progressive": "progressive (one pass; each row is predicted before training on it)",
}

# The number of trials in the table of the best trials.
_N_BEST = 5

# If no trial ran for more than this number of seconds, the time counts as a pause.
_MIN_PAUSE = 60.0

# The maximum number of rows in the table of the Pareto front.
_MAX_FRONT_ROWS = 10


def note_of(evaluations: Evaluations) -> str:
    """Return the note of a study: the best trials, the uncertainty, the settings and the cost."""
    if not evaluations.trials:
        return "No trial has finished yet."
    if evaluations.frame.empty:
        return f"None of the {len(evaluations.trials)} finished trials is in the store."
    contest = evaluations.contest()
    compared = None if contest is None else compare_trials(contest, None, _N_BEST)
    front: list[FrozenTrial] = []  # for several objectives; sorted by the first score
    if len(evaluations.study.directions) > 1:
        front = sorted(
            evaluations.study.best_trials, key=lambda trial: evaluations.sign * trial.values[0]
        )
    parts = [
        _describe_best(evaluations, compared, _describe_optimism(evaluations, contest)),
        _describe_choice(compared),
        _describe_pareto_front(front),
        _code_for_best(evaluations, compared, front),
        f"### What was evaluated\n\n{_facts_table(evaluations)}",
    ]
    return "\n\n".join(part for part in parts if part)


def _describe_optimism(evaluations: Evaluations, contest: Contest | None) -> str:
    """Return a paragraph on the optimism of the best score, with advice on what to do next."""
    if len(evaluations.frame) == 1:
        return ""
    optimism = (
        f"The score of the best of {len(evaluations.frame)} trials on the same folds is optimistic"
    )
    corrected = corrected_by_folds(contest, evaluations.sign)
    if contest is None or corrected is None:
        return f"{optimism}."
    optimism = (
        f"{optimism}: corrected for the choice by a bootstrap of the folds, its score is "
        f"**{_value(corrected)}**. If the scores of rows are available, `objective.honest(study)` "
        "resamples rows instead, which is more precise."
    )
    with suppress(ValueError):  # there are too few trials for advice
        optimism = f"{optimism} {advice_of(contest)}"
    return optimism


def _describe_best(evaluations: Evaluations, compared: Compared | None, optimism: str) -> str:
    """Return the table of the best trials, with their standard errors."""
    best, trials = evaluations.best(_N_BEST), evaluations.trials
    if best.empty:
        return "No finished trial has a finite value."
    metric = plain(evaluations.metric)
    names = sorted({name for number in best["trial_number"] for name in trials[number].params})
    best_trial = trials[best["trial_number"].iloc[0]]
    others = [
        name for name in scores_of_trial(best_trial.user_attrs) if name != evaluations.metric
    ]
    intervals = {
        c.trial.number: interval_in_words(c.difference.interval)
        for c in ([] if compared is None else compared.next_best)
        if c.difference is not None
    }
    minus = ["minus the best"] if intervals else []
    head = ["trial", metric, *minus, *map(plain, others), *map(plain, names)]
    rows = []
    for row in best.itertuples():
        trial, estimate = trials[row.trial_number], plus_minus(row.mean, row.standard_error)
        difference = [intervals.get(trial.number, "")] if intervals else []
        scores = _cells(scores_of_trial(trial.user_attrs), others)
        params = _cells(trial.params, names)
        rows.append([trial.number, estimate, *difference, *scores, *params])
    error = "± is the standard error of the fold mean, std / √folds, as if folds were independent."
    if evaluations.how_sure != "std / √folds":
        error = f"± is the standard error, {evaluations.how_sure}."
    values = {name: {trial.params.get(name) for trial in trials.values()} for name in names}
    chosen_from = [trials[number] for number in evaluations.best()["trial_number"]]
    edges = [
        f" {plain(name)} is {where}; a wider range may contain a better value."
        for name, where in edges_of(best_trial, {}, chosen_from).items()
        if len(values[name]) > 2
    ]
    if intervals:
        error += " Differences are paired by folds; their intervals have level 0.95."
    return (
        f"## Best: trial {best_trial.number}, {metric} {rows[0][1]}\n\n"
        f"{_table(head, rows)}\n\n"
        f"{error} {optimism}{''.join(edges)}"
    )


def _describe_choice(compared: Compared | None) -> str:
    """Return a list that shows how certain the choice is; "" if fold scores are not comparable."""
    if compared is None:
        return ""
    choice = compared.choice
    lines = []
    if choice.interval is not None:
        lines.append(
            f"Interval of Nadeau & Bengio at level 0.95 for {choice.interval.target}, for trial "
            f"{choice.trial.number}: **{interval_in_words(choice.interval)}**."
        )
    indistinguishable = choice.not_distinguishable
    which = "no other trial"
    if indistinguishable:
        more = f" and {len(indistinguishable) - 8} more" if len(indistinguishable) > 8 else ""
        which = (
            f"{len(indistinguishable)} trials ({', '.join(map(str, indistinguishable[:8]))}{more})"
        )
    lines.append(f"Not distinguishable from trial {choice.best.number}, the best one: {which}.")
    if (simplest := compared.simplest) is not None:
        params = ", ".join(f"{plain(name)}={_value(x)}" for name, x in simplest.params.items())
        lines.append(
            "Simplest trial within one standard error of the best: "
            f"**trial {simplest.number}** ({params})."
        )
    listed = "\n".join(f"* {line}" for line in lines)
    return f"### How sure is the choice?\n\n{listed}"


def _describe_pareto_front(front: Sequence[FrozenTrial]) -> str:
    """Return the table of the Pareto front; "" for a single-objective study."""
    if not front:
        return ""
    scores = {trial.number: scores_of_trial(trial.user_attrs) for trial in front}
    names = list(dict.fromkeys(name for by_name in scores.values() for name in by_name))
    params = sorted({name for trial in front for name in trial.params})
    shown = front[:: -(-len(front) // _MAX_FRONT_ROWS)]
    rows = [
        [trial.number, *_cells(scores[trial.number], names), *_cells(trial.params, params)]
        for trial in shown
    ]
    note = f", of which {len(shown)} are shown" if len(shown) < len(front) else ""
    return (
        f"## Pareto front: {len(front)} trial{'s' if len(front) > 1 else ''}{note}\n\n"
        f"{_table(['trial', *map(plain, names), *map(plain, params)], rows)}\n\n"
        "No trial is better than any of these in one of the optimized scores and at least as good "
        "in the others."
    )


def _code_for_best(
    evaluations: Evaluations, compared: Compared | None, front: Sequence[FrozenTrial]
) -> str:
    """Return Python code that fits the estimator of the best trial."""
    study_name = evaluations.study.study_name
    best, which = evaluations.best(), "study"
    if front:
        best = best[best["trial_number"] == front[0].number]
        which = f"study.trials[{front[0].number}]"
    if best.empty:
        return ""
    number, learner = best[["trial_number", "learner"]].iloc[0]
    params = ", ".join(
        f"{name}={value!r}" for name, value in evaluations.trials[number].params.items()
    )
    simplest = None if compared is None else compared.simplest
    one_se_line = ""
    if simplest is not None and simplest.number != number:
        one_se_line = (
            'model = objective.best_estimator(study, rule="one_se")  '
            f"# now trial {simplest.number}\n"
        )
    about = _line(f"{learner} with {params or 'no parameters'}")
    return (
        "### Use this model\n\n"
        "With the storage and the objective of this study:\n\n"
        "```python\n"
        f"study = optuna.load_study(study_name={study_name!r}, storage=storage)\n"
        f"model = objective.best_estimator({which})  # fitted on all rows\n"
        f"# Now trial {number}: {about}\n"
        f"{one_se_line}"
        f"predicted = objective.predict_oof({which})  # also threshold, conformal, ensemble\n"
        "```"
    )


def _facts_table(evaluations: Evaluations) -> str:
    """Return a table with the data, the learner, the folds, the trials and the cost."""
    frame = evaluations.frame
    seconds = frame["seconds"].sum()
    states = Counter(
        trial.state.name.lower() for trial in evaluations.study.get_trials(deepcopy=False)
    )
    finished = states["complete"] + states["pruned"]
    n_infinite = int((~np.isfinite(frame["mean"])).sum())
    counts = [f"{count:,} {state}" for state, count in sorted(states.items())]
    counts += [f"{n_infinite:,} of them infinite"] if n_infinite else []
    counts += [f"{len(frame):,} of {finished:,} in the store"] if finished > len(frame) else []
    frame = frame.assign(
        # An evaluation may have no fingerprint.
        data=[key and f", fingerprint {_code(key[:12])}" for key in frame["fingerprint"]],
        learner=frame["learner"].map(_code),
        cv=[_code(f"cv={cv}") for cv in frame["cv"]],
        order=[", random order" if order == "random" else "" for order in frame["order"]],
        method=[METHODS_IN_WORDS.get(name, plain(name)) for name in frame["method"]],
        seed=frame["random_state"].map(plain),
        scoring=frame["scoring"].map(plain),
    )
    facts = {
        "data": _fill_for_each(frame, "{n_rows:,} rows × {n_features:,} features{data}"),
        "learner": _fill_for_each(frame, "{learner}"),
        "folds": _fill_for_each(frame, "{n_folds:,} × {n_repeats} ({cv}){order}"),
        "method": _fill_for_each(frame, "{method}, seed {seed}"),
        "score": _describe_scores(evaluations) or _fill_for_each(frame, "{scoring}, {direction}"),
        "baseline": _describe_baseline(evaluations),
        "trials": ", ".join(counts),
        "row updates": _describe_work(evaluations.frame),
        "time": f"{_duration(seconds)} of evaluation; {clock_in_words(evaluations)}",
    }
    return _table(["", ""], [[f"**{name}**", value] for name, value in facts.items() if value])


def _describe_work(frame: Frame) -> str:
    """Return the numbers of row updates that were done, saved, and needed by separate fits."""
    done, n_saved = int(frame["n_updates"].sum()), int(frame["n_updates_saved"].sum())
    share = f" ({n_saved / (done + n_saved):.0%})" if n_saved else ""
    work = f"{_amount(done)} done, {_amount(n_saved)} saved by sharing{share}"
    n_standard = frame["n_updates_standard"]
    if set(frame["method"]) == {"fit"}:  # the folds are trained separately anyway
        return f"{work}, {_amount(n_standard.sum())} without pruning and sharing"
    scored = frame["folds_scored"] / (frame["n_folds"] * frame["n_repeats"])
    return f"{work}, {_amount((n_standard * scored).sum())} for k separate trainings"


def clock_in_words(evaluations: Evaluations) -> str:
    """Return a sentence on the duration of the study and Optuna's share of it.

    Optuna's share is the time in and between trials that is spent neither in evaluations nor in
    the store. It includes callbacks. It is omitted if trials overlap, have failed or are not in
    the store.
    """
    spans: list[tuple[Any, Any]] = sorted(  # finished trials have both times
        (trial.datetime_start, trial.datetime_complete) for trial in evaluations.trials.values()
    )
    seconds = (max(end for _, end in spans) - spans[0][0]).total_seconds()
    clock = f"{_duration(seconds)} from the first start to the last end"
    gaps = [(b[0] - a[1]).total_seconds() for a, b in zip(spans, spans[1:], strict=False)]
    records = [facts_of_trial(trial.user_attrs) for trial in evaluations.trials.values()]
    seconds_of_store = sum(record.get("seconds_store", 0.0) for record in records)
    own_seconds = (
        evaluations.frame["seconds"].sum()
        + evaluations.frame["seconds_prepare"].sum()
        + seconds_of_store
    )
    pauses = sum(gap for gap in gaps if gap > _MIN_PAUSE)
    optuna_seconds = seconds - pauses - own_seconds
    is_whole = len(evaluations.frame) > max(evaluations.trials) and min(gaps, default=0.0) >= 0
    if not is_whole or not 0 < optuna_seconds:
        return clock
    clock += f", of which {_duration(optuna_seconds)} ({optuna_seconds / seconds:.0%}) in Optuna"
    return f"{clock} and {_duration(pauses)} in pauses" if pauses else clock


def _amount(count: float) -> str:
    """Return a count as text, such as 56,232 or 12.3 million."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:,.3g} {name}"
    return f"{count:,.0f}"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _describe_baseline(evaluations: Evaluations) -> str:
    """Return a sentence on the score of a constant prediction; "" if it was not recorded."""
    if "baseline" not in evaluations.facts:
        return ""
    score, complete = evaluations.facts["baseline"], evaluations.best()
    better = int((evaluations.sign * complete["mean"] < evaluations.sign * score).sum())
    beating = f"{better:,} of {len(complete):,} complete trials" if better else "**no trial**"
    return (
        f"{score:.4g} on all rows by always predicting {plain(evaluations.facts['baseline_of'])}; "
        f"better: {beating}"
    )


def _describe_scores(evaluations: Evaluations) -> str:
    """Return the names and directions of several optimized scores; "" if there is only one."""
    optimized = evaluations.facts.get("optimize")
    if not isinstance(optimized, list):
        return ""
    directions = [direction.name.lower() for direction in evaluations.study.directions]
    pairs = zip(optimized, directions, strict=False)
    return "; ".join(f"{plain(name)}, {direction}" for name, direction in pairs)


def _fill_for_each(frame: Frame, template: str) -> str:
    """Fill a template with the values of each evaluation; show at most three distinct results."""
    texts = list(dict.fromkeys(template.format(**row) for row in frame.to_dict("records")))
    more = [f"and {len(texts) - 3} more"] if len(texts) > 3 else []
    return "; ".join(texts[:3] + more)


def _cells(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_value(values.get(name, "")) for name in names]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain(value)


def plain(text: Any) -> str:
    """Return Markdown that displays a text verbatim: plain words, or else a code span."""
    line = _line(text)
    return line if _WORDS.fullmatch(line) else _code(line)


def _code(text: Any) -> str:
    """Return a code span, in which neither HTML nor links nor formulas are interpreted."""
    line = _line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    gap = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{fence}{gap}{line}{gap}{fence}" if line else ""


def _line(text: Any) -> str:
    """Replace line breaks and repeated spaces by single spaces."""
    return " ".join(str(text).split())


def cells_of(line: str) -> list[str]:
    """Return the cells in a line of a Markdown table."""
    return [cell.strip().removesuffix("&emsp;") for cell in line.split("|")[1:-1]]


def _table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table.

    Each cell ends with a wide space, because the dashboard shows no gap between columns.
    """
    lines = [[f"{cell}&emsp;" if cell != "" else "" for cell in line] for line in (head, *rows)]
    lines.insert(1, [":--"] * len(head))
    return "\n".join(
        f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in line)} |"
        for line in lines
    )


def as_text(note: str) -> str:
    """Return a note as plain text, without bold markup and with aligned tables."""
    lines: list[str] = []
    for is_table, block in groupby(_plain_lines(note), key=lambda line: line.startswith("|")):
        block_lines = list(block)
        lines += _align_table(block_lines) if is_table else block_lines
    return re.sub("\n{3,}", "\n\n", "\n".join(lines))


def _align_table(table: list[str]) -> list[str]:
    """Align the columns of a Markdown table, whose header may be empty."""
    rows = [cells_of(line) for line in table]
    rows[1] = ["-" * max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = align(rows)
    return lines if lines[0] else ["", "", *lines[2:]]


def align(
    rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Return the lines of a table with aligned columns; the first column is left-aligned."""
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(first), *map(justify, row[1:], widths)]).rstrip() for row in rows
    ]


def _plain_lines(note: str) -> list[str]:
    """Return the lines of a note without bold markup outside code."""
    lines, is_code = [], False
    for line in note.splitlines():
        is_code ^= line.startswith("```")
        parts: list[str] = re.split(r"(`+[^`].*?`+)", line)
        parts[::2] = [re.sub(r"\*\*([^*]+)\*\*", r"\1", text) for text in parts[::2]]
        lines.append(line if is_code else "".join(parts))
    return lines


def as_html(note: str, title: str, figures: Sequence[str]) -> str:
    """Return an HTML page with a note and figures, which need ``plotly.min.js`` in its folder."""
    title = escape(title)
    lines = [
        "<!DOCTYPE html>",
        f"<html lang='en'><head><meta charset='utf-8'><title>{title}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *map(_render_block, note.split("\n\n")),
        "<h2>Figures</h2>",
        "<p>The figures need <code>plotly.min.js</code> in the folder of this page.</p>",
        *figures,
        "</body></html>\n",
    ]
    return "\n".join(lines)


def _render_block(block: str) -> str:
    """Convert a Markdown heading, table, list, code block or paragraph to HTML."""
    lines = block.splitlines()
    if block.startswith("#"):
        marks, text = block.split(" ", 1)
        return f"<h{len(marks)}>{_render_text(text)}</h{len(marks)}>"
    if block.startswith("|"):
        head, _, *rows = [[_render_text(cell) for cell in cells_of(line)] for line in lines]
        head_row = [_render_row("th", head)] if any(head) else []
        html_rows = [_render_row("td", row) for row in rows]
        return "\n".join(["<table>", *head_row, *html_rows, "</table>"])
    if block.startswith("* "):
        items = (f"<li>{_render_text(line.removeprefix('* '))}</li>" for line in lines)
        return "\n".join(["<ul>", *items, "</ul>"])
    if block.startswith("```"):
        code = "\n".join(lines[1:-1])
        return f"<pre>{escape(code)}</pre>"
    return f"<p>{_render_text(block)}</p>"


def _render_row(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _render_text(text: str) -> str:
    """Convert a line with code spans and bold text to HTML."""
    html, end = [], 0
    for code in _CODE.finditer(text):
        html += [_render_bold(text[end : code.start()]), f"<code>{escape(code[2].strip())}</code>"]
        end = code.end()
    return "".join([*html, _render_bold(text[end:])])


def _render_bold(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
