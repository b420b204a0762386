"""Updates that an attack asked for, and what had been sent to their clients: a folder of a run, one file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leakline.errors import StoreError
from leakline.messages import Round, Update
from leakline.names import is_safe
from leakline.study.files import make_folder, write_atomically
from leakline.study.tensors import Pieces, pack_sealed, read_sealed
from leakline.weights import Layout, Weights

SENT = "sent.safetensors"
RESTORE = "restore the file, or delete this run's folder to run it again"


class KeptRounds:
    """``kept/round-0003/<client>.safetensors`` and ``sent.safetensors`` of a run."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def add(self, round_: Round) -> None:
        """Store a round's kept updates and what was sent."""
        if not round_.updates:
            return
        folder = self._folder(round_.index)
        make_folder(folder)
        layout = json.dumps([[e.name, list(e.shape), e.buffer] for e in round_.sent.layout.entries])
        write_atomically(folder / SENT, pack_sealed({"weights": round_.sent.vector.contiguous()}, {"layout": layout}))
        for update in round_.updates:
            write_atomically(folder / _name(update), _packed(update))

    def of(self, index: int, layout: Layout) -> tuple[Weights, list[Update]] | None:
        """What was stored of a round: the weights sent and the updates, in the order of names; None if nothing."""
        folder = self._folder(index)
        if not (folder / SENT).is_file():
            return None
        sent = Weights(layout, self._tensors(folder / SENT)[0]["weights"])
        paths = sorted(path for path in folder.glob("*.safetensors") if path.name != SENT)
        return sent, [_unpacked(sent, *self._tensors(path)) for path in paths]

    def there(self) -> set[tuple[int, str]]:
        """Of which rounds and clients updates were kept."""
        paths = self.run.glob("kept/round-*/*.safetensors")
        stems = [(p.parent.name.removeprefix("round-"), p.stem) for p in paths if p.name != SENT]
        return {(int(index), stem.partition(".part-")[0]) for index, stem in stems if index.isdigit()}

    def _folder(self, index: int) -> Path:
        return self.run / "kept" / f"round-{index:04d}"

    def _tensors(self, path: Path) -> tuple[dict[str, Any], dict[str, str]]:
        try:
            return read_sealed(path, self.run)
        except StoreError:
            raise
        except Exception as error:  # a damaged file may fail in any way
            where = f"{self.run.name}/kept/{path.parent.name}"
            raise StoreError(f"{path.name} is damaged ({type(error).__name__}: {error})", where, RESTORE) from error


def _name(update: Update) -> str:
    if not is_safe(update.client):
        raise StoreError(f"a client's name cannot be a file name: {update.client[:40]!r}", fix="rename the client")
    return f"{update.client}.safetensors" if update.part == 0 else f"{update.client}.part-{update.part}.safetensors"


def _packed(update: Update) -> Pieces:
    numbers = {"examples": update.examples, "steps": update.steps, "part": update.part}
    about = {name: str(number) for name, number in numbers.items()} | {"client": update.client}
    return pack_sealed({"delta": update.delta.vector.contiguous()}, about)


def _unpacked(sent: Weights, tensors: dict[str, Any], about: dict[str, str]) -> Update:
    examples, steps = int(about["examples"]), int(about["steps"])
    return Update(about["client"], sent.like(tensors["delta"]), examples, steps, part=int(about.get("part", 0)))
