"""The text of a DAG: its file's docstring, and its params as the duty's model describes them."""

from collections.abc import Iterable, Iterator
from textwrap import TextWrapper

from mailslice.maintenance.params import DRY_RUN, QUEUES, form_shapes
from mailslice.maintenance.registry import load


def dag_doc(duty: str, text: str, *, reads_only: bool) -> str:
    """Markdown: `text`, with the params before its example."""
    given = "Airflow itself gives `time_limit`, from the time-outs of task and run"
    if "slices_from" in load(duty).params.model_fields:
        given += ", and `slices_from` and `slices_before`, from the data interval of a backfill"
    head = "In brackets: what a run by hand gets where the form or `--conf` is silent."
    return with_params(text, head, _params(duty, reads_only), f"{_wrapped(f'{given}.')}\n\n")


def with_params(
    text: str, head: str, params: Iterable[tuple[str, str, str]], after_them: str = ""
) -> str:
    """Markdown: `text`, with name, default and meaning of the params before its example."""
    before, example, after = text.strip().partition("**Example**")
    lines = (_wrapped(f"- `{name}` (`{default}`): {text}", "  ") for name, default, text in params)
    return "\n".join(
        [f"{before}**Params.** {head}", "", *lines, "", f"{after_them}{example}{after}"]
    )


def _params(duty: str, reads_only: bool) -> Iterator[tuple[str, str, str]]:
    entry = load(duty)
    for param in form_shapes(entry.params, queues=entry.needs_queue, approve=not reads_only):
        default = param.default_text or ("all" if param.name == QUEUES else "unset")
        if param.name == DRY_RUN and not reads_only:
            yield param.name, "true", f"{param.text}; scheduled runs are not dry"
        else:
            yield param.name, default.lower() if param.kind == "boolean" else default, param.text


def _wrapped(text: str, indent: str = "") -> str:
    wrapper = TextWrapper(100, "", indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(" ".join(text.split()))
