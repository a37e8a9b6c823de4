#!/usr/bin/env python3
"""Write what is made from the program in docs/: settings.md, cli.md, metrics.md, and the tables of api.md.

    python scripts/write_docs.py            write them
    python scripts/write_docs.py --check    exit 1 and name those that are stale

The tests run the check, so these pages cannot fall behind the code.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from sixfold.api.field_docs import FieldDoc, field_docs, structs_of
from sixfold.api.openapi import OPERATIONS, statuses
from sixfold.cli.main import cli
from sixfold.cli.settings import ENVIRONMENT_PREFIX, TITLES
from sixfold.config import Config, settings
from sixfold.messages import EngineStats
from sixfold.observability.aliases import VLLM
from sixfold.observability.families import process_families
from sixfold.observability.meter import Meter
from sixfold.observability.metrics import ApiMetrics
from sixfold.observability.site import Kind, Site
from sixfold.observability.sites import SITES
from sixfold.observability.timeline import State

EXIT_CODES = """\
`sixfold help COMMAND` is `sixfold COMMAND --help`. `--traceback` may stand before or behind the command.

| exit code | when |
|---|---|
| 0 | done; `serve`: stopped by Ctrl-C or SIGTERM, once its processes had been started |
| 1 | it failed, or the model does not fit into memory; `doctor`: something is wrong; `batch`: some requests failed |
| 2 | the command, a flag or a setting is wrong; `serve`: it cannot listen on its address; \
`batch`: nothing was run, see [batch.md](batch.md) |
| 4 | `serve`, `batch`: one of its processes died before it was ready, or again and again \
([reliability.md](reliability.md)) |
| 130 | stopped by Ctrl-C, `batch` by any signal; `chat` while it loads (later: 0) |

`serve scripted --script FILE` serves answers that you wrote down: [the scripted executor](scripted.md).
The files of `sixfold batch` are described in [batch.md](batch.md).
"""
DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH = {"terminal_width": 100, "max_content_width": 100}
MADE = "<!-- Made by scripts/write_docs.py; do not edit. -->\n"


def settings_page() -> str:
    """One table per part of the configuration."""
    lines = [
        MADE,
        "# Settings\n",
        "A setting comes from its default, from the TOML file given with `--config` (or `SIXFOLD_CONFIG`), from an",
        "environment variable, or from a flag; the later one wins. `sixfold doctor` shows each value and its origin.",
        "A key of the file, or a `SIXFOLD_...` variable, that is no setting is refused, with the nearest name.",
        'In Python they are keyword arguments: `LLM("smollm2", max_num_seqs=8)`.\n',
        "```toml",
        "# sixfold.toml",
        'model = "smollm2"',
        "max_num_seqs = 8",
        "enable_prefix_caching = false",
        "```\n",
        f"For `--max-num-seqs` the variable is `{ENVIRONMENT_PREFIX}MAX_NUM_SEQS` and the TOML key `max_num_seqs`.",
        "Three more variables are read: `SIXFOLD_CACHE`, the folder of model files (default `~/.cache/sixfold`),",
        "`SIXFOLD_ISA`, which forces [a build of the kernels](instruction-sets.md), and `SIXFOLD_API_KEY`, the key",
        "with which `top`, `waits` and `trace` ask a server.\n",
        "Kubernetes sets variables of its own for a service called `sixfold`: `SIXFOLD_SERVICE_HOST`,",
        "`SIXFOLD_PORT_8000_TCP` and the like, and `SIXFOLD_PORT=tcp://10.0.0.1:8000`. They are let be, and",
        "`sixfold doctor` lists them; `enableServiceLinks: false` in the pod's specification keeps them away.\n",
    ]
    owner_before: str | None = None
    for flag, (owner, f) in settings().items():
        if owner != owner_before:
            title, doc = _part(owner)
            lines += ["", f"## {title}\n", f"{doc}\n", "| setting | default | what it is |", "|---|---|---|"]
            owner_before = owner
        choices = f"; one of {', '.join(f'`{c}`' for c in f.metadata['choices'])}" if f.metadata["choices"] else ""
        default = '""' if f.default == "" else str(f.default).lower() if isinstance(f.default, bool) else str(f.default)
        shown = "MODEL (the argument)" if flag == "--model" else f"`{flag}`"
        lines.append(f"| {shown} | `{default}` | {f.metadata['help']}{choices} |")
    return "\n".join(lines) + "\n"


def _part(owner: str) -> tuple[str, str]:
    if not owner:
        return TITLES[owner], "What belongs to no part alone."
    doc = (type(getattr(Config(), owner)).__doc__ or "").splitlines()[0]
    return TITLES[owner], doc


def cli_page() -> str:
    """`--help` of every command as it prints, without parts of the configuration that it takes as a whole: they have
    their own page."""
    top = click.Context(cli, info_name="sixfold", help_option_names=["-h", "--help"], **WIDTH)
    parts = [
        MADE,
        "# The `sixfold` command\n",
        EXIT_CODES,
        f"## `sixfold`\n\n```\n{cli.get_help(top)}\n```\n",
    ]
    commands = [(name, cli.get_command(top, name)) for name in cli.list_commands(top)]
    parts += [_command(name, command, top) for name, command in commands if command is not None]
    return "\n".join(parts)


def _command(name: str, command: click.Command, top: click.Context) -> str:
    taken = {param.name for param in command.params} | {"model"}
    lacking = {owner for owner, f in settings().values() if f.name not in taken}
    whole = {f.name: TITLES[owner] for owner, f in settings().values() if owner not in lacking}
    shown = copy.copy(command)
    shown._help_option = None  # click keeps that of the first call, which may have had other names for it
    shown.params = [param for param in command.params if isinstance(param, click.Argument) or param.name not in whole]
    text = shown.get_help(click.Context(shown, info_name=name, parent=top, **WIDTH))
    more = ""
    if whole:
        links = ", ".join(f"[{t}](settings.md#{t.lower().replace(' ', '-')})" for t in dict.fromkeys(whole.values()))
        more = f"\nAnd the settings under {links}.\n"
        hidden = {param.name for param in command.params if isinstance(param, click.Option) and param.hidden}
        if unused := [f"`{flag}`" for flag, (_, f) in settings().items() if f.name in hidden]:
            more += f"`--help` leaves out those that are taken and of no use here: {', '.join(unused)}.\n"
    return f"## `sixfold {name}`\n\n```\n{text}\n```\n{more}"


def metrics_page() -> str:
    """Every family that `/metrics` shows."""
    lines = [
        MADE,
        "# Metrics\n",
        "`GET /metrics`, Prometheus' text format. Every series has the label `model_name`. Where vLLM has the same",
        "metric, it has the same name after the prefix. [observability.md](observability.md) tells what the sites are,",
        "[deploy/grafana/](../deploy/grafana/sixfold.json) holds a dashboard.\n",
        "| metric | type | more labels | what it is |",
        "|---|---|---|---|",
    ]
    metrics = ApiMetrics("model", EngineStats)
    metrics.count_refusal(400, "invalid_json")
    meter = Meter.private()
    for site in range(len(SITES)):
        meter.tally(site, 1)
    of_processes = process_families([("engine", meter)], [("engine", 0.0)], {"model_name": "model"})
    suffixes = {}
    for family in (*metrics.collect(), *of_processes):
        suffix = suffixes[family.name] = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels} - {"model_name", "le"}
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |")
    lines += [
        "\n## vLLM's names\n",
        "With `--metrics-aliases vllm` the following are there, too, for dashboards and inference gateways that look",
        "for them; only where they mean the same. Gateways also find `vllm:cache_config_info` (`block_size`,",
        "`num_gpu_blocks`) and `vllm:lora_requests_info`, which says that there are no adapters.\n",
        "| alias | metric |",
        "|---|---|",
    ]
    for name, aliases in VLLM.items():
        suffix = suffixes[f"sixfold_{name}"]
        lines += [f"| `vllm:{alias}{suffix}` | `sixfold_{name}{suffix}` |" for alias in aliases]
    return "\n".join(lines) + "\n"


BEGIN = "<!-- Made by scripts/write_docs.py from here -->\n"
END = "<!-- to here; do not edit. -->\n"


def api_page() -> str:
    """The page as it stands, with new tables between its two marks."""
    text = (DOCS / "api.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join([*_endpoints(), *_types()]) + "\n" + END + after


def _endpoints() -> list[str]:
    lines = ["", "## Endpoints\n", "| endpoint | what it does | body | status |", "|---|---|---|---|"]
    for op in OPERATIONS:
        body = "" if op.request is None else _link(op.request)
        codes = ", ".join(map(str, statuses(op)))
        lines.append(f"| `{op.method.upper()} {op.path}` | {op.summary} | {body} | {codes} |")
    return lines


def _types() -> list[str]:
    requests = [op.request for op in OPERATIONS if op.request is not None]
    bases = [base for request in requests if (base := _base(request)) is not None]
    lines: list[str] = []
    for struct in structs_of(dict.fromkeys([*bases, *requests])):
        base = _base(struct)
        shared = {} if base is None else {doc.name: doc for doc in field_docs(base)}
        docs = [doc for doc in field_docs(struct) if shared.get(doc.name) != doc]
        lines += ["", f"### {struct.__name__}\n", " ".join((struct.__doc__ or "").split()) + "\n"]
        if base is not None:
            lines[-1] = lines[-1].removesuffix("\n") + f" All fields of {_link(base)}, and:\n"
        lines += ["| field | type | default | what it does |", "|---|---|---|---|", *map(_field_row, docs)]
    return lines


def _base(struct: type[msgspec.Struct]) -> type[msgspec.Struct] | None:
    """The type whose fields it shares with others; a base without any is a matter of the code."""
    base: type[msgspec.Struct] = struct.__bases__[0]
    return base if base.__struct_fields__ else None


def _field_row(doc: FieldDoc) -> str:
    default = "required" if doc.required else "" if doc.default is None else _default(doc.default)
    kind = "" if doc.kind == "understood" else f"*{doc.kind}*: "
    what = kind + doc.description.replace(" *", " \\*")
    return f"| `{doc.name}` | {doc.type} | {default} | {what} |"


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _link(struct: type[msgspec.Struct]) -> str:
    return f"[{struct.__name__}](#{struct.__name__.lower()})"


def waits_page() -> str:
    """The register of waits, with why each of them is there."""
    lines = [
        MADE,
        "# Waits\n",
        "Every place where one part of the server waits for another, and why. A wait is kept if it protects something",
        "(*invariant*), is no loss while something else runs (*overlappable*), is a cost with a known lever",
        "(*shrinkable*), or none, because nothing is to be done (*idle*). A test finds waits that are not listed here.",
        "The tests that are named exist; those of the scheduler also run with the wait taken out, and see that",
        "something breaks. `sixfold waits` shows what waits cost on a running server, `/debug/requests` where the time",
        "of single requests went.\n",
    ]
    for component in dict.fromkeys(site.component for site in SITES):
        sites = [site for site in SITES if site.component == component and site.kind is not Kind.WORK]
        if not sites:
            continue
        lines += [f"## {component}\n", "| wait | of what, for what | kind | why | until |", "|---|---|---|---|---|"]
        lines += [f"| `{s.name}` | {s.what} | {s.kind.value} | {_why(s)} | {s.bound} |" for s in sites]
        lines.append("")
    lines += ["## Where they are\n", "| wait | below `src/sixfold/` |", "|---|---|"]
    lines += [f"| `{s.name}` | {s.where} |" for s in SITES if s.kind is not Kind.WORK]
    lines += ["", "## States of a request\n"]
    lines += [
        "Where several things happen at once, the state is the one that is later in this list: what the next token "
        "depends on.\n"
    ]
    lines += ["| state | what happens |", "|---|---|", *(f"| `{state}` | {said} |" for state, said in _states())]
    return "\n".join(lines) + "\n"


def _states() -> Iterator[tuple[str, str]]:
    """Each state, and the string below it in the source."""
    [states] = ast.parse(inspect.getsource(State)).body
    assert isinstance(states, ast.ClassDef)
    for line, following in zip(states.body, [*states.body[1:], None], strict=True):
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            said = following.value.value if isinstance(following, ast.Expr) else ""
            yield line.value.value, " ".join(said.split())


def _why(site: Site) -> str:
    if site.protects:
        return f"{site.protects} (`tests/{site.test}`)"
    return (site.meanwhile and f"meanwhile: {site.meanwhile}") or (site.lever and f"lever: {site.lever}") or ""


PAGES = {
    "settings.md": settings_page,
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "api.md": api_page,
    "waits.md": waits_page,
}


def stale() -> list[str]:
    """Names of the pages whose text is not what the program says now."""
    return [n for n, make in PAGES.items() if not (DOCS / n).is_file() or (DOCS / n).read_text() != make()]


def main() -> int:
    pages = stale()
    if "--check" in sys.argv[1:]:
        for name in pages:
            print(f"docs/{name} is stale: run scripts/write_docs.py", file=sys.stderr)
        return bool(pages)
    for name in pages:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
