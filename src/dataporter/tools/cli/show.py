"""`dataporter show package.module:make_loader --state checkpoint.pt`: a batch of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dataporter.errors import OptionError
from dataporter.tools.cli import arguments, output


def show(
    context: typer.Context,
    factory: arguments.Factory,
    state: Annotated[
        Path | None, typer.Option(help="The checkpoint of the run: a file or a folder.")
    ] = None,
    place: Annotated[
        str | None, typer.Option(help="Which state, if the checkpoint has several.")
    ] = None,
    back: Annotated[
        int | None, typer.Option(help="Batches before the one delivered last. Default: 0.")
    ] = None,
    position: Annotated[int | None, typer.Option(help="Position where the step began.")] = None,
    epoch: Annotated[int | None, typer.Option(help="Epoch. Default: the state's, or 0.")] = None,
    rank: Annotated[int, typer.Option(help="Rank whose batch it is.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write a page .html, or the images as .png.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit.")] = 120,
    as_json: Annotated[bool, typer.Option("--json", help="Print the batch as JSON.")] = False,
) -> None:
    """Show a batch of a run again: the one of a loss spike, with its samples and augmentation.

    The loader is made in a separate process, with the batch size and the ranks of the state, and
    fetches one batch. Exit status: 0, or 2 if the factory, the state or the batch cannot be used.
    """
    from dataporter.tools.show import BatchToShow
    from dataporter.tools.show import show as shown
    from dataporter.tools.show.report import as_dict, drawn, parts_of

    if out is not None:
        output.check_picture(out, (".html", ".png"))
    saved = None if state is None else _state_in(state, place)
    wanted = BatchToShow(state=saved, back=back, epoch=epoch, position=position, rank=rank)
    arguments.import_from_here()
    console = output.make_console(quiet=as_json)
    with output.waiting(console, "fetching the batch"):
        found = shown(factory, wanted, seconds=seconds, shows_output=bool(context.obj))
    if as_json:
        output.print_json(as_dict(found))
    output.print_parts(console, parts_of(found))
    if out is not None:
        output.write_whole(out, drawn(found, out.suffix.lower()))
        output.say(console, f"\nThe {'page' if out.suffix == '.html' else 'picture'} is in {out}.")


def _state_in(path: Path, place: str | None) -> Mapping[str, Any]:
    """Return the loader's state in a checkpoint."""
    from dataporter.tools.inspect import find_states

    states = find_states(path).states
    fitting = [each for each in states if any((place or "") in where for where in each.places)]
    if len(fitting) == 1:
        return fitting[0].state
    places = ", ".join(each.places[0] or "the whole file" for each in fitting or states)
    found = f"{len(states)} loader states" if len(states) > 1 else "one loader state"
    which = f"none of them at {place!r}" if not fitting else f"of which {len(fitting)} fit"
    msg = f"{path} has {found}, {which}: {places}. Name one by --place, or a part of its name."
    raise OptionError(msg)
